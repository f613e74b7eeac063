/* text/normalize: NFC by libutf8proc, linear in the text. */
#include <utf8proc.h>

#include <string.h>

#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer_internal.h"

bool nfc_is_clean(const char *s, size_t n) {
    size_t width;
    for (size_t i = 0; i < n; i += width) {
        width = 1;
        if ((uint8_t)s[i] < 0x80) continue;
        if (unicode_classes_at(s + i, n - i, &width) & CLASS_NFC_UNSAFE) return false;
    }
    return true;
}

/* utf8proc orders marks by swapping neighbours, quadratic in their number; a run that is in order
 * already costs it nothing. Stable, by counting over the classes. */
static void sort_marks(int32_t *codes, int32_t *scratch, size_t n) {
    size_t count[257] = {0};
    for (size_t i = 0; i < n; i++)
        count[(uint8_t)utf8proc_get_property(codes[i])->combining_class + 1]++;
    for (int c = 0; c < 256; c++) count[c + 1] += count[c];
    for (size_t i = 0; i < n; i++)
        scratch[count[(uint8_t)utf8proc_get_property(codes[i])->combining_class]++] = codes[i];
    memcpy(codes, scratch, n * sizeof *codes);
}

/* codes: decomposed, [n]. */
static void order_marks(int32_t *codes, int32_t *scratch, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t begin = i;
        bool sorted = true;
        int before = 0;
        for (; i < n; i++) {
            int order = utf8proc_get_property(codes[i])->combining_class;
            if (order == 0) break;
            sorted = sorted && order >= before;
            before = order;
        }
        if (!sorted) sort_marks(codes + begin, scratch, i - begin);
        if (i == begin) i++;
    }
}

/* Decomposes valid UTF-8, [n] bytes; *out is owned and has room to be encoded in place. */
static bool decompose(const char *s, size_t n, int32_t **out, size_t *n_out) {
    size_t len = 0, capacity = 0, width;
    int32_t *codes = NULL;
    for (size_t i = 0; i < n; i += width) {
        int boundary = 0;
        uint32_t code = utf8_decode(s + i, n - i, &width);
        if (!mem_grow((void **)&codes, &capacity, len + 32, sizeof *codes)) break;
        utf8proc_ssize_t made = utf8proc_decompose_char(
            (int32_t)code, codes + len, 32, UTF8PROC_DECOMPOSE | UTF8PROC_STABLE, &boundary);
        if (made < 0 || made > 32) break;
        len += (size_t)made;
        if (i + width >= n) {
            *out = codes;
            *n_out = len;
            return true;
        }
    }
    mem_free(codes);
    return false;
}

static bool append_valid(buf *out, const char *s, size_t n) {
    int32_t *codes, *scratch;
    size_t n_codes;
    if (nfc_is_clean(s, n)) {
        buf_append(out, s, n);
        return !out->failed;
    }
    if (!decompose(s, n, &codes, &n_codes)) return false;
    scratch = mem_alloc(n_codes * sizeof *scratch);
    if (scratch != NULL) {
        order_marks(codes, scratch, n_codes);
        utf8proc_ssize_t composed = utf8proc_normalize_utf32(codes, (utf8proc_ssize_t)n_codes,
                                                             UTF8PROC_COMPOSE | UTF8PROC_STABLE);
        for (utf8proc_ssize_t i = 0; i < composed; i++) {
            char encoded[4];
            buf_append(out, encoded, utf8_encode((uint32_t)codes[i], encoded));
        }
    }
    mem_free(codes);
    mem_free(scratch);
    return scratch != NULL && !out->failed;
}

bool nfc_append(buf *out, const char *s, size_t n) {
    size_t begin = 0, i = 0, width;
    while (i < n) {
        if (utf8_decode(s + i, n - i, &width) != UTF8_INVALID) {
            i += width;
            continue;
        }
        if (i > begin && !append_valid(out, s + begin, i - begin)) return false;
        buf_append(out, s + i, width);
        i += width;
        begin = i;
    }
    if (i > begin && !append_valid(out, s + begin, i - begin)) return false;
    return !out->failed;
}
