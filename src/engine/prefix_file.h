/* engine/prefix_file: the prefix cache on disk, from one run of a server to the next.
 *
 * The most used prefixes are written, up to a number of bytes, and found again when the file is
 * read by an engine of the same fingerprint (model, version, ISA path, type of the cache, precise)
 * and the same blocks. Anything else, and a file that was damaged, is refused with a reason; the
 * cache is then as empty as before. The file holds the tokens of prompts: only its owner may read
 * it.
 *
 * Format, in the machine's byte order: the header below; one record a node, parents before their
 * children: prefix_record, its tokens (int32), and for each group in the mask the block as the
 * device gives it; at the end XXH3 of all that stands before.
 */
#ifndef RIDGE_ENGINE_PREFIX_FILE_H
#define RIDGE_ENGINE_PREFIX_FILE_H

#include "engine/engine_internal.h"

/* No sequence may be in the scheduler. Replaces the file at once when it is complete; an engine
 * that has cached nothing leaves it as it is. *n_tokens (NULL allowed): how many the prefixes
 * written have. */
ridge_status prefix_file_write(engine *e, const char *path, uint64_t max_bytes, uint64_t *n_tokens,
                               ridge_error *err) RIDGE_CHECKED;
/* RIDGE_ENOTFOUND: there is none, or it is empty; RIDGE_EFORMAT: damaged, another engine's, or of
 * another version of the format; RIDGE_EUNSUPPORTED: something else altogether; or it can't be
 * read. Takes what fits. */
ridge_status prefix_file_read(engine *e, const char *path, uint64_t *n_tokens,
                              ridge_error *err) RIDGE_CHECKED;

#endif
