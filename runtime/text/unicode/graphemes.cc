#include "runtime/text/unicode/graphemes.h"

#include <unicode/uchar.h>

#include "common/text/utf8.h"

namespace sluice {
namespace {

int BreakClass(char32_t c) {
  return u_getIntPropertyValue(static_cast<UChar32>(c),
                               UCHAR_GRAPHEME_CLUSTER_BREAK);
}

bool IsPictograph(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c),
                             UCHAR_EXTENDED_PICTOGRAPHIC);
}

bool IsControl(int c) {
  return c == U_GCB_CONTROL || c == U_GCB_CR || c == U_GCB_LF;
}

// Whether rules GB3 to GB9b keep two neighbours together.
bool Joins(int left, int right) {
  if (left == U_GCB_CR && right == U_GCB_LF) return true;
  if (IsControl(left) || IsControl(right)) return false;
  if (left == U_GCB_L && (right == U_GCB_L || right == U_GCB_V ||
                          right == U_GCB_LV || right == U_GCB_LVT)) {
    return true;
  }
  if ((left == U_GCB_LV || left == U_GCB_V) &&
      (right == U_GCB_V || right == U_GCB_T)) {
    return true;
  }
  if ((left == U_GCB_LVT || left == U_GCB_T) && right == U_GCB_T) return true;
  return right == U_GCB_EXTEND || right == U_GCB_ZWJ ||
         right == U_GCB_SPACING_MARK || left == U_GCB_PREPEND;
}

}  // namespace

size_t GraphemeEnd(absl::string_view text, size_t pos) {
  const auto is_ascii = [&](size_t at) {
    return static_cast<unsigned char>(text[at]) < 0x80;
  };
  // Of ASCII, only the two characters of a line's end stay together.
  if (is_ascii(pos)) {
    if (pos + 1 == text.size()) return pos + 1;
    if (is_ascii(pos + 1)) {
      return text[pos] == '\r' && text[pos + 1] == '\n' ? pos + 2 : pos + 1;
    }
  }
  char32_t c = DecodeUtf8(text, &pos);
  int left = BreakClass(c);
  bool picture = IsPictograph(c);  // then, maybe, marks
  int flags = left == U_GCB_REGIONAL_INDICATOR ? 1 : 0;
  while (pos < text.size()) {
    size_t next = pos;
    c = DecodeUtf8(text, &next);
    const int right = BreakClass(c);
    bool joins = Joins(left, right);
    if (picture && left == U_GCB_ZWJ && IsPictograph(c)) joins = true;  // GB11
    if (left == U_GCB_REGIONAL_INDICATOR && right == left && flags % 2 == 1) {
      joins = true;  // GB12, GB13
    }
    if (!joins) break;
    if (right == U_GCB_REGIONAL_INDICATOR) ++flags;
    if (right != U_GCB_EXTEND && right != U_GCB_ZWJ) picture = IsPictograph(c);
    left = right;
    pos = next;
  }
  return pos;
}

}  // namespace sluice
