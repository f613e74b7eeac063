/* sched/sequence: see sequence.h. */
#include "sched/sequence.h"

#include <string.h>

#include "base/mem.h"

ridge_status sequence_init(sequence *s, const int32_t *prompt, uint32_t n_prompt,
                           uint32_t max_tokens, uint32_t block_size, uint32_t n_groups,
                           ridge_error *err) {
    ridge_assert(n_prompt >= 1 && max_tokens >= n_prompt && n_groups <= SEQUENCE_MAX_GROUPS);
    *s = (sequence){.n_tokens = n_prompt, .n_prompt = n_prompt, .max_tokens = max_tokens};
    s->tokens = mem_zalloc(max_tokens, sizeof *s->tokens);
    if (s->tokens == NULL)
        return RIDGE_FAIL(err, RIDGE_ENOMEM, "a sequence of %u tokens", max_tokens);
    memcpy(s->tokens, prompt, n_prompt * sizeof *prompt);
    uint32_t max_blocks = kv_blocks_for(max_tokens, block_size);
    for (; s->n_groups < n_groups; s->n_groups++) {
        ridge_status status = kv_table_init(&s->kv.tables[s->n_groups], max_blocks, err);
        if (status != RIDGE_OK) {
            sequence_deinit(s);
            return status;
        }
    }
    return RIDGE_OK;
}

void sequence_deinit(sequence *s) {
    for (uint32_t g = 0; g < s->n_groups; g++) kv_table_deinit(&s->kv.tables[g]);
    mem_free(s->tokens);
    mem_free(s->near);
    *s = (sequence){0};
}

void sequence_append(sequence *s, int32_t token) {
    ridge_assert(s->n_tokens < s->max_tokens);
    s->tokens[s->n_tokens++] = token;
}

bool sequence_before(const sequence *a, const sequence *b) {
    return a->priority != b->priority ? a->priority < b->priority : a->id < b->id;
}
