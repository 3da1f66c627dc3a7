#include "runtime/text/chat_template.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/host/read_file.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "runtime/gguf/gguf_file.h"
#include "runtime/text/jinja/ast.h"
#include "runtime/text/jinja/content_forms.h"
#include "runtime/text/jinja/parser.h"
#include "runtime/text/jinja/render.h"

namespace sluice {
namespace {

constexpr size_t kMaxFileBytes = size_t{64} << 20;

struct Sources {
  std::string main;
  absl::StatusOr<std::string> for_tools = absl::NotFoundError("");
};

// Reads the templates in "chat_template" of tokenizer_config.json.
absl::StatusOr<Sources> TemplatesOfConfig(const std::string& text) {
  nlohmann::json config;
  try {
    config = nlohmann::json::parse(text);
  } catch (const nlohmann::json::exception& e) {
    return InvalidArgument("not JSON: ", JsonErrorText(e.what()));
  }
  if (!config.is_object()) {
    return absl::InvalidArgumentError("must be a JSON object");
  }
  const auto it = config.find("chat_template");
  if (it == config.end() || it->is_null()) {
    return absl::NotFoundError("no chat_template");
  }
  if (it->is_string()) return Sources{it->get<std::string>()};
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
  Sources sources{*std::move(main)};
  if (auto for_tools = named("tool_use")) {
    sources.for_tools = *std::move(for_tools);
  }
  return sources;
}

}  // namespace

struct ChatTemplate::Impl {
  std::string source;
  std::unique_ptr<const jinja::Template> parsed;
  jinja::ContentForms forms;
  // The template for tools; null: this one; an error: it can't be used.
  absl::StatusOr<std::unique_ptr<const ChatTemplate>> for_tools = nullptr;
};

ChatTemplate::ChatTemplate() = default;
ChatTemplate::~ChatTemplate() = default;

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Load(
    const std::filesystem::path& model_dir) {
  if (IsGgufFile(model_dir)) return LoadGguf(model_dir);
  std::filesystem::path path = model_dir / "chat_template.jinja";
  std::string path_for_tools;
  Sources sources;
  absl::StatusOr<std::string> file = ReadSmallFile(path, kMaxFileBytes);
  if (file.ok()) {
    sources.main = *std::move(file);
    const auto more =
        model_dir / "additional_chat_templates" / "tool_use.jinja";
    path_for_tools = more.string();
    sources.for_tools = ReadSmallFile(more, kMaxFileBytes);
  } else if (absl::IsNotFound(file.status())) {
    path = model_dir / "tokenizer_config.json";
    absl::StatusOr<std::string> config = ReadSmallFile(path, kMaxFileBytes);
    if (absl::IsNotFound(config.status())) {
      return NotFound(model_dir.string(),
                      ": no chat template: neither chat_template.jinja nor "
                      "tokenizer_config.json");
    }
    SLUICE_RETURN_IF_ERROR(config.status());
    SLUICE_ASSIGN_OR_RETURN(
        sources, Annotate(TemplatesOfConfig(*config), path.string()));
    path_for_tools = path.string();
  } else {
    return file.status();
  }
  auto parsed = ParseImpl(sources.main);
  if (!parsed.ok()) {
    return Annotate(parsed.status(),
                    absl::StrCat(path.string(), ": chat template"));
  }
  // An unusable template for tools must not affect chats without tools.
  if (sources.for_tools.ok()) {
    auto for_tools = Parse(*sources.for_tools);
    if (for_tools.ok()) {
      (*parsed)->for_tools = *std::move(for_tools);
    } else {
      (*parsed)->for_tools =
          Annotate(for_tools.status(),
                   absl::StrCat(path_for_tools, ": chat template tool_use"));
    }
  } else if (!absl::IsNotFound(sources.for_tools.status())) {
    (*parsed)->for_tools = sources.for_tools.status();
  }
  return Wrap(*std::move(parsed));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::LoadGguf(
    const std::filesystem::path& file) {
  constexpr char kKey[] = "tokenizer.chat_template";
  SLUICE_ASSIGN_OR_RETURN(const GgufMetadata metadata, ReadGgufMetadata(file));
  const auto source_of = [&](const std::string& key) {
    return Annotate(metadata.String(key), file.string());
  };
  SLUICE_ASSIGN_OR_RETURN(const auto source, source_of(kKey));
  if (!source) {
    return NotFound(file.string(), ": no chat template: no metadata \"", kKey,
                    "\"");
  }
  const std::string where = absl::StrCat(file.string(), ": chat template");
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl,
                          Annotate(ParseImpl(*source), where));
  SLUICE_ASSIGN_OR_RETURN(const auto tools,
                          source_of(absl::StrCat(kKey, ".tool_use")));
  if (tools) {
    auto for_tools = Parse(*tools);
    if (for_tools.ok()) {
      impl->for_tools = *std::move(for_tools);
    } else {
      impl->for_tools =
          Annotate(for_tools.status(), absl::StrCat(where, " tool_use"));
    }
  }
  return Wrap(std::move(impl));
}

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Parse(
    absl::string_view source) {
  SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<Impl> impl, ParseImpl(source));
  return Wrap(std::move(impl));
}

absl::StatusOr<std::unique_ptr<ChatTemplate::Impl>> ChatTemplate::ParseImpl(
    absl::string_view source) {
  auto impl = std::make_unique<Impl>();
  impl->source = std::string(source);
  SLUICE_ASSIGN_OR_RETURN(impl->parsed, jinja::ParseTemplate(source));
  impl->forms = jinja::FindContentForms(*impl->parsed);
  return impl;
}

std::unique_ptr<ChatTemplate> ChatTemplate::Wrap(std::unique_ptr<Impl> impl) {
  std::unique_ptr<ChatTemplate> result(new ChatTemplate());
  result->impl_ = std::move(impl);
  return result;
}

absl::StatusOr<const ChatTemplate*> ChatTemplate::ForTools() const {
  SLUICE_RETURN_IF_ERROR(impl_->for_tools.status());
  return *impl_->for_tools != nullptr ? impl_->for_tools->get() : this;
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
