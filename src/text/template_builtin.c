/* text/template_builtin: small chat templates for models that come without one, by the name of
 * the format. They take messages whose content is a text. */
#include <string.h>

#include "text/template.h"

#define SYSTEM_SPLIT                                                                               \
    "{%- set system = messages[0]['content'] if messages and messages[0]['role'] == 'system' "     \
    "else '' -%}\n"                                                                                \
    "{%- set turns = messages[1:] if messages and messages[0]['role'] == 'system' else messages "  \
    "-%}\n"

static const struct {
    const char *name, *source;
} builtins[] = {
    {"alpaca", SYSTEM_SPLIT "{%- if system %}{{ system ~ '\\n\\n' }}{% endif -%}\n"
                            "{%- for m in turns -%}\n"
                            "{%- if m['role'] == 'user' -%}\n"
                            "{{ '### Instruction:\\n' ~ m['content'] ~ '\\n\\n' }}\n"
                            "{%- else -%}\n"
                            "{{ '### Response:\\n' ~ m['content'] ~ eos_token ~ '\\n\\n' }}\n"
                            "{%- endif -%}\n"
                            "{%- endfor -%}\n"
                            "{%- if add_generation_prompt %}{{ '### Response:\\n' }}{% endif -%}"},
    {"chatml", "{%- for m in messages -%}\n"
               "{{ '<|im_start|>' ~ m['role'] ~ '\\n' ~ m['content'] ~ '<|im_end|>\\n' }}\n"
               "{%- endfor -%}\n"
               "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif -%}"},
    {"gemma", SYSTEM_SPLIT
     "{{ bos_token }}\n"
     "{%- for m in turns -%}\n"
     "{{ '<start_of_turn>' ~ ('model' if m['role'] == 'assistant' else m['role']) ~ '\\n' }}\n"
     "{%- if loop.first and system %}{{ system ~ '\\n\\n' }}{% endif -%}\n"
     "{{ m['content'] | trim ~ '<end_of_turn>\\n' }}\n"
     "{%- endfor -%}\n"
     "{%- if add_generation_prompt %}{{ '<start_of_turn>model\\n' }}{% endif -%}"},
    {"llama2", SYSTEM_SPLIT "{%- for m in turns -%}\n"
                            "{%- if m['role'] == 'user' -%}\n"
                            "{{ bos_token ~ '[INST] ' }}\n"
                            "{%- if loop.first and system %}{{ '<<SYS>>\\n' ~ system ~ "
                            "'\\n<</SYS>>\\n\\n' }}{% endif -%}\n"
                            "{{ m['content'] | trim ~ ' [/INST]' }}\n"
                            "{%- else -%}\n"
                            "{{ ' ' ~ m['content'] | trim ~ ' ' ~ eos_token }}\n"
                            "{%- endif -%}\n"
                            "{%- endfor -%}"},
    {"llama3", "{{ bos_token }}\n"
               "{%- for m in messages -%}\n"
               "{{ '<|start_header_id|>' ~ m['role'] ~ '<|end_header_id|>\\n\\n' ~ m['content'] | "
               "trim ~ '<|eot_id|>' }}\n"
               "{%- endfor -%}\n"
               "{%- if add_generation_prompt -%}\n"
               "{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}\n"
               "{%- endif -%}"},
    {"mistral", SYSTEM_SPLIT
     "{{ bos_token }}\n"
     "{%- for m in turns -%}\n"
     "{%- if m['role'] == 'user' -%}\n"
     "{{ '[INST] ' ~ (system ~ '\\n\\n' if loop.first and system else '') ~ m['content'] ~ "
     "'[/INST]' }}\n"
     "{%- else -%}\n"
     "{{ ' ' ~ m['content'] ~ eos_token }}\n"
     "{%- endif -%}\n"
     "{%- endfor -%}"},
    {"phi3", "{%- for m in messages -%}\n"
             "{{ '<|' ~ m['role'] ~ '|>\\n' ~ m['content'] ~ '<|end|>\\n' }}\n"
             "{%- endfor -%}\n"
             "{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif -%}"},
    {"vicuna", SYSTEM_SPLIT "{%- if system %}{{ system ~ '\\n\\n' }}{% endif -%}\n"
                            "{%- for m in turns -%}\n"
                            "{%- if m['role'] == 'user' -%}\n"
                            "{{ 'USER: ' ~ m['content'] ~ '\\n' }}\n"
                            "{%- else -%}\n"
                            "{{ 'ASSISTANT: ' ~ m['content'] ~ eos_token ~ '\\n' }}\n"
                            "{%- endif -%}\n"
                            "{%- endfor -%}\n"
                            "{%- if add_generation_prompt %}{{ 'ASSISTANT:' }}{% endif -%}"},
    {"zephyr", "{%- for m in messages -%}\n"
               "{{ '<|' ~ m['role'] ~ '|>\\n' ~ m['content'] ~ eos_token ~ '\\n' }}\n"
               "{%- endfor -%}\n"
               "{%- if add_generation_prompt %}{{ '<|assistant|>\\n' }}{% endif -%}"},
};

const char *template_builtin(const char *name) {
    for (size_t i = 0; i < sizeof builtins / sizeof *builtins; i++)
        if (strcmp(builtins[i].name, name) == 0) return builtins[i].source;
    return NULL;
}

const char *template_builtin_names(void) {
    return "alpaca, chatml, gemma, llama2, llama3, mistral, phi3, vicuna, zephyr";
}
