/* cli/svg: text that stands in a picture. */
#ifndef RIDGE_CLI_SVG_H
#define RIDGE_CLI_SVG_H

#include "base/buf.h"

/* Escaped; at most so many characters, the last "..." of a longer one. What is not UTF-8 or not
 * allowed in XML is U+FFFD. */
void svg_put_text(buf *b, const char *s, size_t most);

#endif
