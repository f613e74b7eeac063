/* cli/svg: see svg.h. */
#include "cli/svg.h"

#include <string.h>

#include "base/utf8.h"

void svg_put_text(buf *b, const char *s, size_t most) {
    size_t left = strlen(s), width;
    for (size_t n = 0; left > 0; n++, s += width, left -= width) {
        uint32_t c = utf8_decode(s, left, &width);
        bool allowed = c != UTF8_INVALID && (c >= 0x20 || c == '\t') && (c | 1) != 0xFFFF;
        if (n + 1 == most && left > width) {
            buf_puts(b, "\xE2\x80\xA6");
            return;
        }
        switch (c) {
        case '&': buf_puts(b, "&amp;"); break;
        case '<': buf_puts(b, "&lt;"); break;
        case '>': buf_puts(b, "&gt;"); break;
        case '"': buf_puts(b, "&quot;"); break;
        default: buf_append(b, allowed ? s : "\xEF\xBF\xBD", allowed ? width : 3); break;
        }
    }
}
