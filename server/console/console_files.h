#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// A file of the page, as it is in server/console/page.
struct ConsoleFile {
  absl::string_view name;  // "console.css"
  absl::string_view content_type;
  absl::string_view body;
};

// All of them; made by embed.cmake.
absl::Span<const ConsoleFile> ConsoleFiles();

}  // namespace sluice
