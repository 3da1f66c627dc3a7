#pragma once

#include <filesystem>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/civil_time.h"

namespace sluice {

// A Jinja chat template, as Hugging Face's apply_chat_template renders it
// (trim_blocks, lstrip_blocks). Immutable, thread-safe.
class ChatTemplate {
 public:
  ~ChatTemplate();

  // chat_template.jinja, or "chat_template" of tokenizer_config.json (a string,
  // or a list whose "default" is taken). kNotFound if the model has none;
  // kInvalidArgument with line and reason for a template that does not parse;
  // kUnimplemented names a construct that is not supported.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Load(
      const std::filesystem::path& model_dir);
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(
      absl::string_view source);

  // `variables` is an object: messages, add_generation_prompt, bos_token,
  // eos_token, tools, ... The order of keys counts (tojson shows it). tools and
  // documents are none and add_generation_prompt false where not given; the
  // names under which messages may carry reasoning are made to agree, as
  // apply_chat_template does. kInvalidArgument for raise_exception (its message
  // alone) and for errors of evaluation (with the template's line);
  // kUnimplemented names what is not supported. Work and output are bounded: a
  // template that loops away gives kResourceExhausted.
  absl::StatusOr<std::string> Render(
      const nlohmann::ordered_json& variables) const;
  // With the time that strftime_now sees, instead of the local time.
  absl::StatusOr<std::string> RenderAt(const nlohmann::ordered_json& variables,
                                       absl::CivilSecond now) const;

 private:
  ChatTemplate();
  struct Impl;
  std::unique_ptr<const Impl> impl_;
};

}  // namespace sluice
