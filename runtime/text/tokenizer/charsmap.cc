#include "runtime/text/tokenizer/charsmap.h"

#include <utility>

#include "common/status_macros.h"
#include "common/text/utf8.h"
#include "runtime/text/unicode/graphemes.h"

namespace sluice {
namespace {

constexpr size_t kLongGraphemeBytes = 6;

uint32_t Uint32At(absl::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (size_t i = 4; i-- > 0;) {
    value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  }
  return value;
}

// The fields of a unit of the double array.
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1) != 0; }
uint32_t Value(uint32_t unit) { return unit & 0x7FFFFFFF; }
uint32_t Label(uint32_t unit) { return unit & 0x800000FF; }
uint32_t Offset(uint32_t unit) { return unit >> 10 << ((unit & 1u << 9) >> 6); }

size_t CountChars(absl::string_view text) {
  size_t count = 0;
  for (const char c : text) count += IsUtf8Continuation(c) ? 0 : 1;
  return count;
}

// Collects normalized text, and counts the bytes of it that stem from the
// first character. Hugging Face's bookkeeping: a new character stems from the
// next old one; if there are more new ones than old ones, the last of them stem
// from the old one before; if there are fewer, the last one takes the rest. If
// there are none, nothing takes it: all that comes stems from older characters.
class Output {
 public:
  Output(size_t size, size_t first_bytes) : first_bytes_(first_bytes) {
    text_.reserve(size);
  }

  void Append(absl::string_view from, absl::string_view to) {
    if (first_bytes_ == 0) {
      text_.append(to.data(), to.size());
      return;
    }
    const size_t old_count = CountChars(from);
    size_t i = 0;
    for (size_t pos = 0; pos < to.size(); ++i) {
      const size_t begin = pos;
      pos += Utf8Length(to[pos]);
      const bool takes = i < old_count;
      const size_t stem = takes || taken_ == 0 ? taken_ : taken_ - 1;
      text_.append(to.data() + begin, pos - begin);
      if (stem == 0) new_first_bytes_ = text_.size();
      if (takes) ++taken_;
    }
    if (i > 0 && old_count > i) taken_ += old_count - i;
    if (i == 0 && !text_.empty()) taken_ += old_count;
  }

  void Finish(NormalizedText* text) {
    text->text = std::move(text_);
    text->first_bytes = new_first_bytes_;
  }

 private:
  std::string text_;
  size_t first_bytes_;
  size_t new_first_bytes_ = 0;
  size_t taken_ = 0;  // old characters that new ones stem from so far
};

absl::Status Normalize(const Charsmap& map, NormalizedText* text) {
  const absl::string_view in = text->text;
  Output out(in.size(), text->first_bytes);
  bool modified = false;
  const auto replace = [&](absl::string_view part) {
    const auto found = map.Find(part);
    if (found) {
      out.Append(part, *found);
      modified = true;
    }
    return found.has_value();
  };
  for (size_t pos = 0; pos < in.size();) {
    const size_t end = GraphemeEnd(in, pos);
    const absl::string_view grapheme = in.substr(pos, end - pos);
    if (grapheme.size() >= kLongGraphemeBytes || !replace(grapheme)) {
      while (pos < end) {
        const absl::string_view part = in.substr(pos, Utf8Length(in[pos]));
        if (!replace(part)) out.Append(part, part);
        pos += part.size();
      }
    }
    pos = end;
  }
  if (modified) out.Finish(text);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Charsmap> Charsmap::Parse(absl::string_view bytes) {
  if (bytes.size() < 4) return InvalidArgument("the charsmap is too short");
  const uint32_t size = Uint32At(bytes, 0);
  bytes.remove_prefix(4);
  if (size % 4 != 0 || size == 0 || size > bytes.size()) {
    return InvalidArgument("the charsmap's array of ", size,
                           " bytes does not fit into it");
  }
  Charsmap map;
  map.units_.reserve(size / 4);
  for (size_t at = 0; at < size; at += 4) {
    map.units_.push_back(Uint32At(bytes, at));
  }
  map.texts_ = std::string(bytes.substr(size));
  if (FindInvalidUtf8(map.texts_)) {
    return InvalidArgument("the charsmap's texts are not valid UTF-8");
  }
  return map;
}

std::optional<absl::string_view> Charsmap::Find(absl::string_view text) const {
  uint32_t node = Offset(units_[0]);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte == 0) break;
    node ^= byte;
    if (node >= units_.size() || Label(units_[node]) != byte) break;
    const bool leaf = HasLeaf(units_[node]);
    node ^= Offset(units_[node]);
    if (!leaf) continue;
    if (node >= units_.size()) break;
    const uint32_t begin = Value(units_[node]);
    if (begin > texts_.size()) break;
    const absl::string_view rest = absl::string_view(texts_).substr(begin);
    // A broken table may point into a character.
    if (!rest.empty() && IsUtf8Continuation(rest[0])) break;
    return rest.substr(0, rest.find('\0'));
  }
  return std::nullopt;
}

Normalizer CharsmapNormalizer(Charsmap map) {
  return [map = std::move(map)](NormalizedText* text) {
    return Normalize(map, text);
  };
}

}  // namespace sluice
