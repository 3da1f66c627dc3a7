#include "runtime/text/chat_template.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <system_error>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/status_macros.h"
#include "runtime/text/chat_template/ast.h"
#include "runtime/text/chat_template/content_forms.h"
#include "runtime/text/chat_template/parser.h"
#include "runtime/text/chat_template/render.h"

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

struct Sources {
  std::string main;
  std::optional<std::string> for_tools;
};

// The templates that "chat_template" of tokenizer_config.json holds.
absl::StatusOr<Sources> TemplatesOfConfig(const std::string& text) {
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
  if (it->is_string()) return Sources{it->get<std::string>(), std::nullopt};
  if (!it->is_array()) {
    return absl::InvalidArgumentError(
        "chat_template must be a string or a list of named templates");
  }
  const auto named = [&](const char* name) -> std::optional<std::string> {
    for (const nlohmann::json& entry : *it) {
      if (!entry.is_object()) continue;
      const auto own_name = entry.find("name");
      const auto body = entry.find("template");
      if (own_name != entry.end() && *own_name == name && body != entry.end() &&
          body->is_string()) {
        return body->get<std::string>();
      }
    }
    return std::nullopt;
  };
  std::optional<std::string> main = named("default");
  if (!main) {
    return absl::InvalidArgumentError(
        "chat_template is a list without a template named \"default\"");
  }
  return Sources{*std::move(main), named("tool_use")};
}

}  // namespace

struct ChatTemplate::Impl {
  std::string source;
  std::unique_ptr<const jinja::Template> parsed;
  jinja::ContentForms forms;
  std::unique_ptr<const ChatTemplate> for_tools;  // null: this one
};

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(
    const std::filesystem::path& model_dir) {
  std::filesystem::path path = model_dir / "chat_template.jinja";
  Sources sources;
  absl::StatusOr<std::string> file = ReadFile(path);
  if (file.ok()) {
    sources.main = *std::move(file);
    const auto more =
        model_dir / "additional_chat_templates" / "tool_use.jinja";
    absl::StatusOr<std::string> for_tools = ReadFile(more);
    if (for_tools.ok()) {
      sources.for_tools = *std::move(for_tools);
    } else if (!absl::IsNotFound(for_tools.status())) {
      return for_tools.status();
    }
  } else if (absl::IsNotFound(file.status())) {
    path = model_dir / "tokenizer_config.json";
    absl::StatusOr<std::string> config = ReadFile(path);
    if (absl::IsNotFound(config.status())) {
      return absl::NotFoundError(
          absl::StrCat(model_dir.string(),
                       ": no chat template: neither chat_template.jinja nor "
                       "tokenizer_config.json"));
    }
    SLUICE_RETURN_IF_ERROR(config.status());
    auto found = TemplatesOfConfig(*config);
    if (!found.ok()) return Annotate(found.status(), path.string());
    sources = *std::move(found);
  } else {
    return file.status();
  }
  auto parsed = ParseBoth(sources.main, sources.for_tools);
  if (!parsed.ok()) {
    return Annotate(parsed.status(),
                    absl::StrCat(path.string(), ": chat template"));
  }
  return parsed;
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(
    absl::string_view source) {
  return ParseBoth(source, std::nullopt);
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::ParseBoth(
    absl::string_view source, const std::optional<std::string>& for_tools) {
  auto impl = std::make_unique<Impl>();
  impl->source = std::string(source);
  SLUICE_ASSIGN_OR_RETURN(impl->parsed, jinja::ParseTemplate(source));
  if (for_tools) {
    auto other = Parse(*for_tools);
    if (!other.ok()) return Annotate(other.status(), "tool_use");
    impl->for_tools = *std::move(other);
  }
  impl->forms = jinja::FindContentForms(*impl->parsed);
  std::unique_ptr<ChatTemplate> result(new ChatTemplate());
  result->impl_ = std::move(impl);
  return result;
}

const ChatTemplate& ChatTemplate::ForTools() const {
  return impl_->for_tools != nullptr ? *impl_->for_tools : *this;
}

bool ChatTemplate::Reads(absl::string_view variable) const {
  return absl::StrContains(impl_->source, variable);
}

bool ChatTemplate::TakesParts(absl::string_view role) const {
  return impl_->forms.roles_with_parts.contains(role);
}

bool ChatTemplate::TakesArgumentsAsText() const {
  return impl_->forms.text_arguments;
}

absl::StatusOr<std::string> ChatTemplate::Render(
    const nlohmann::ordered_json& variables) const {
  return RenderAt(variables,
                  absl::ToCivilSecond(absl::Now(), absl::LocalTimeZone()));
}

absl::StatusOr<std::string> ChatTemplate::RenderAt(
    const nlohmann::ordered_json& variables, absl::CivilSecond now) const {
  return jinja::RenderTemplate(*impl_->parsed, variables, now);
}

}  // namespace sluice
