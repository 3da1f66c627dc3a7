#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "runtime/text/tokenizer/json_part.h"

namespace sluice {

// One step of turning tokens into text, as a filter: Push takes tokens (or,
// behind a step that makes one token of all, the parts of that token) and
// passes final text on to the next step. Thread-compatible.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  virtual void Push(absl::string_view token) = 0;
  // Ends the text: passes on held-back text and flushes the next step. Push may
  // follow and begins a new text.
  virtual void Flush() = 0;
};

// One of the steps by which a tokenizer turns tokens into text. Thread-safe.
struct Decoder {
  // Whether the step makes one token of all.
  bool fuses = false;
  // Makes a step that feeds `next`, which is not owned and must outlive it.
  // `fused`: tokens come as parts of one token.
  absl::AnyInvocable<std::unique_ptr<DecodeStep>(bool fused, DecodeStep* next)
                         const>
      new_step;
};

// Reads tokenizer.json's "decoder": in the order of application, "Sequence"
// resolved.
absl::StatusOr<std::vector<Decoder>> DecodersFromJson(const JsonPart& part);
// The default decoder, which separates tokens by spaces.
Decoder SpacesDecoder();
Decoder ByteLevelDecoder();

// A chain of steps with text at its end.
class DecodeChain {
 public:
  explicit DecodeChain(const std::vector<Decoder>& decoders);
  // Appends final text to `out`.
  void Push(absl::string_view token, std::string* out);
  void Flush(std::string* out);

 private:
  struct End : DecodeStep {
    std::string text;
    void Push(absl::string_view token) override {
      text.append(token.data(), token.size());
    }
    void Flush() override {}
  };
  void Take(std::string* out);

  End end_;
  std::vector<std::unique_ptr<DecodeStep>> steps_;
  DecodeStep* first_;
};

}  // namespace sluice
