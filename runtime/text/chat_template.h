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

  // Loads chat_template.jinja, or "chat_template" of tokenizer_config.json (a
  // string, or the "default" of a list), or a GGUF file's metadata. If there is
  // also one named "tool_use" (in that list, or
  // additional_chat_templates/tool_use.jinja), ForTools returns it, or its
  // error. kNotFound if the model has no template; kInvalidArgument with line
  // and reason for one that does not parse; kUnimplemented names a construct
  // that is not supported.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Load(
      const std::filesystem::path& model_dir);
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Parse(
      absl::string_view source);

  // The template for conversations with tools, which lives as long as this one.
  // If it can't be read or parsed, Load's error for it, which names the file.
  absl::StatusOr<const ChatTemplate*> ForTools() const;

  // Whether the template contains this name: other variables change nothing.
  bool Reads(absl::string_view variable) const;
  // Whether a message of this role may have a list of text parts as its
  // content: such templates join the parts, others would drop the list, print
  // it as code or refuse it. It is found by trying.
  bool TakesParts(absl::string_view role) const;
  // Whether the arguments of tool calls must be JSON in a string, instead of
  // the parsed object. It is found by trying.
  bool TakesArgumentsAsText() const;

  // `variables` is an object: messages, add_generation_prompt, special tokens
  // by their names, tools, ... The order of keys counts (tojson shows it).
  // tools and documents are none and add_generation_prompt false if not given;
  // the names under which messages may carry reasoning are made to agree, as
  // apply_chat_template does. kInvalidArgument for raise_exception (its message
  // alone) and for errors of evaluation (with the template's line);
  // kUnimplemented names an unsupported construct. Work and output are bounded:
  // a template that loops too long gives kResourceExhausted.
  absl::StatusOr<std::string> Render(
      const nlohmann::ordered_json& variables) const;
  // Renders with the given time for strftime_now, instead of the local time.
  absl::StatusOr<std::string> RenderAt(const nlohmann::ordered_json& variables,
                                       absl::CivilSecond now) const;

 private:
  struct Impl;
  ChatTemplate();
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> LoadGguf(
      const std::filesystem::path& file);
  static absl::StatusOr<std::unique_ptr<Impl>> ParseImpl(
      absl::string_view source);
  static std::unique_ptr<ChatTemplate> Wrap(std::unique_ptr<Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace sluice
