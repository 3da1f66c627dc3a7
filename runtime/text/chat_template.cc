#include "runtime/text/chat_template.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "runtime/text/chat_template/ast.h"
#include "runtime/text/chat_template/from_json.h"
#include "runtime/text/chat_template/interpreter.h"
#include "runtime/text/chat_template/parser.h"

namespace sluice {
namespace {

constexpr uintmax_t kMaxFileBytes = uintmax_t{64} << 20;

// kNotFound if there is no such file.
absl::StatusOr<std::string> ReadFile(const std::filesystem::path& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat(path.string(), ": no such file"));
  }
  if (!std::filesystem::is_regular_file(status)) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": not a regular file"));
  }
  const uintmax_t size = std::filesystem::file_size(path, error);
  if (error || size > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path.string(), ": too large"));
  }
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  if (!file || !text) {
    return absl::DataLossError(absl::StrCat(path.string(), ": cannot read"));
  }
  return std::move(text).str();
}

// The template that "chat_template" of tokenizer_config.json holds.
absl::StatusOr<std::string> TemplateOfConfig(const std::string& text) {
  nlohmann::json config;
  try {
    config = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    return absl::InvalidArgumentError(absl::StrCat("not JSON: ", e.what()));
  }
  if (!config.is_object()) {
    return absl::InvalidArgumentError("must be a JSON object");
  }
  const auto it = config.find("chat_template");
  if (it == config.end() || it->is_null()) {
    return absl::NotFoundError("no chat_template");
  }
  if (it->is_string()) return it->get<std::string>();
  if (!it->is_array()) {
    return absl::InvalidArgumentError(
        "chat_template must be a string or a list of named templates");
  }
  for (const nlohmann::json& entry : *it) {
    if (!entry.is_object() ||
        entry.value("name", nlohmann::json()) != nlohmann::json("default")) {
      continue;
    }
    const auto body = entry.find("template");
    if (body != entry.end() && body->is_string()) {
      return body->get<std::string>();
    }
  }
  return absl::InvalidArgumentError(
      "chat_template is a list without a template named \"default\"");
}

}  // namespace

struct ChatTemplate::Impl {
  std::unique_ptr<const jinja::Template> parsed;
};

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(
    const std::filesystem::path& model_dir) {
  std::filesystem::path path = model_dir / "chat_template.jinja";
  absl::StatusOr<std::string> source = ReadFile(path);
  if (absl::IsNotFound(source.status())) {
    path = model_dir / "tokenizer_config.json";
    absl::StatusOr<std::string> config = ReadFile(path);
    if (absl::IsNotFound(config.status())) {
      return absl::NotFoundError(
          absl::StrCat(model_dir.string(),
                       ": no chat template: neither chat_template.jinja nor "
                       "tokenizer_config.json"));
    }
    SLUICE_RETURN_IF_ERROR(config.status());
    source = TemplateOfConfig(*config);
    if (!source.ok()) return Annotate(source.status(), path.string());
  }
  SLUICE_RETURN_IF_ERROR(source.status());
  auto parsed = Parse(*source);
  if (!parsed.ok()) {
    return Annotate(parsed.status(),
                    absl::StrCat(path.string(), ": chat template"));
  }
  return parsed;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(
    absl::string_view source) {
  auto impl = std::make_unique<Impl>();
  SLUICE_ASSIGN_OR_RETURN(impl->parsed, jinja::ParseTemplate(source));
  std::unique_ptr<ChatTemplate> result(new ChatTemplate());
  result->impl_ = std::move(impl);
  return result;
}

absl::StatusOr<std::string> ChatTemplate::Render(
    const nlohmann::ordered_json& variables) const {
  return RenderAt(variables,
                  absl::ToCivilSecond(absl::Now(), absl::LocalTimeZone()));
}

absl::StatusOr<std::string> ChatTemplate::RenderAt(
    const nlohmann::ordered_json& variables, absl::CivilSecond now) const {
  SLUICE_ASSIGN_OR_RETURN(const jinja::Value context,
                          jinja::ContextFromJson(variables));
  // More to say, more to do.
  const uint64_t input_bytes = jinja::ExtentOf(context).size;
  jinja::Limits limits;
  limits.work += 64 * input_bytes;
  limits.bytes += 4 * input_bytes;
  return jinja::Interpreter(*impl_->parsed, *context.AsDict(), now, limits)
      .Run();
}

}  // namespace sluice
