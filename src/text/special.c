/* text/special: the trie of the tokens that are found in a text before anything else. */
#include "base/mem.h"
#include "text/tokenizer_internal.h"

static int32_t new_node(special_trie *trie, uint8_t byte) {
    size_t need = trie->n > 0 ? trie->n + 1 : 2; /* node 0 means none */
    if (need > INT32_MAX ||
        !mem_grow((void **)&trie->nodes, &trie->capacity, need, sizeof *trie->nodes))
        return 0;
    trie->n = need;
    trie->nodes[need - 1] = (special_node){.id = NO_TOKEN, .byte = byte};
    return (int32_t)(need - 1);
}

static int32_t find_child(const special_trie *trie, int32_t first, uint8_t byte) {
    int32_t node = first;
    while (node != 0 && trie->nodes[node].byte != byte) node = trie->nodes[node].sibling;
    return node;
}

bool special_add(special_trie *trie, const char *s, size_t n, int32_t id) {
    int32_t node = 0;
    for (size_t i = 0; i < n; i++) {
        uint8_t byte = (uint8_t)s[i];
        int32_t first = i == 0 ? trie->first[byte] : trie->nodes[node].child;
        int32_t child = find_child(trie, first, byte);
        if (child == 0) {
            child = new_node(trie, byte);
            if (child == 0) return false;
            trie->nodes[child].sibling = first;
            if (i == 0)
                trie->first[byte] = child;
            else
                trie->nodes[node].child = child;
        }
        node = child;
    }
    if (node != 0 && trie->nodes[node].id == NO_TOKEN) trie->nodes[node].id = id;
    return true;
}

int32_t special_match(const tokenizer *t, bool parse_special, const char *s, size_t n,
                      size_t *len) {
    const special_trie *trie = &t->specials;
    int32_t found = NO_TOKEN;
    int32_t node = n > 0 ? trie->first[(uint8_t)s[0]] : 0;
    for (size_t i = 1; node != 0; i++) {
        int32_t id = trie->nodes[node].id;
        if (id != NO_TOKEN && (parse_special || t->vocab.tokens[id].type == TOKEN_USER)) {
            found = id;
            *len = i;
        }
        node = i < n ? find_child(trie, trie->nodes[node].child, (uint8_t)s[i]) : 0;
    }
    return found;
}
