/* kv/summary: which prefixes are cached, for other threads to ask.
 *
 * The tree (prefix.h) is its thread's alone. Of each of its full nodes a hash stands here, chained
 * from the tenant's salt over all tokens down to the node's last, so that whoever has a prompt can
 * ask how much of it is known while the tree changes: a prefix is known if its hash is here.
 *
 * An estimate. One hash in a thousand finds no place and is missing; then a prefix is taken for
 * unknown, though a longer one may still be found. Words are read and written one by one: an answer
 * can be of a moment ago. What a window has lost of a prefix is not seen.
 */
#ifndef RIDGE_KV_SUMMARY_H
#define RIDGE_KV_SUMMARY_H

#include <stdint.h>

#include "base/error.h"

typedef struct kv_summary kv_summary;

/* For so many hashes at a time. */
ridge_status kv_summary_create(kv_summary **out, uint32_t n, ridge_error *err) RIDGE_CHECKED;
void kv_summary_destroy(kv_summary *s); /* NULL allowed */

/* The hash of a prefix that ends with tokens [n], from that of what is before them; of nothing: the
 * salt. */
uint64_t kv_summary_hash(uint64_t before, const int32_t *tokens, uint32_t n);
/* The tree's thread. */
void kv_summary_add(kv_summary *s, uint64_t hash);
void kv_summary_remove(kv_summary *s, uint64_t hash);
/* Any thread: the longest known prefix of tokens [n], in whole blocks of `size`. */
uint32_t kv_summary_find(const kv_summary *s, uint64_t salt, const int32_t *tokens, uint32_t n,
                         uint32_t size);

#endif
