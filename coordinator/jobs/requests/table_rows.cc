#include "coordinator/jobs/requests/table_rows.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"
#include "common/text/text.h"
#include "common/text/utf8.h"

namespace sluice {
namespace {

constexpr char kPromptColumn[] = "prompt";
constexpr char kIdColumn[] = "custom_id";
constexpr size_t kMaxTemplateBytes = 64 << 10;
constexpr size_t kMaxNamedColumns = 32;  // in a message
constexpr size_t kMaxIdBytes = 512;

// A part of a template: text, or the name of a column.
struct TemplatePart {
  std::string text;
  bool is_column = false;
};

absl::StatusOr<std::vector<TemplatePart>> ParseTemplate(
    absl::string_view text) {
  const auto wrong = [&](size_t at, const auto&... what) {
    return InvalidArgument("the prompt ", QuoteForMessage(text), ", byte ",
                           at + 1, ": ", what...);
  };
  if (text.size() > kMaxTemplateBytes) {
    return InvalidArgument("the prompt has more than ", kMaxTemplateBytes,
                           " bytes; shorten it");
  }
  std::vector<TemplatePart> parts;
  TemplatePart plain;
  bool any = false;
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    const bool brace = c == '{' || c == '}';
    if (!brace || text.substr(at + 1, 1) == text.substr(at, 1)) {
      plain.text += c;
      at += brace ? 2 : 1;
      continue;
    }
    if (c == '}') return wrong(at, "a } alone; write }} for a brace");
    const size_t end = text.find_first_of("{}", at + 1);
    if (end == text.npos || text[end] == '{') {
      return wrong(at, "a { that no } closes; write {{ for a brace");
    }
    if (end == at + 1) {
      return wrong(at, "{} names no column; write {NAME}, or {{}} for braces");
    }
    if (!plain.text.empty()) parts.push_back(std::exchange(plain, {}));
    parts.push_back({std::string(text.substr(at + 1, end - at - 1)), true});
    any = true;
    at = end + 1;
  }
  if (!plain.text.empty()) parts.push_back(std::move(plain));
  if (!any) {
    return InvalidArgument(
        "the prompt ", QuoteForMessage(text),
        " names no column, so that all rows would ask the same; write {NAME} "
        "where the field of column NAME belongs");
  }
  return parts;
}

std::string NamesOf(const CsvRow& header) {
  std::string names;
  for (size_t i = 0; i < std::min(header.size(), kMaxNamedColumns); ++i) {
    absl::StrAppend(&names, i == 0 ? "" : ", ", QuoteForMessage(header[i]));
  }
  if (header.size() > kMaxNamedColumns) absl::StrAppend(&names, ", ...");
  return names;
}

// Returns the index of a column, or nullopt if there is none of that name.
absl::StatusOr<std::optional<size_t>> Find(const CsvRow& header,
                                           absl::string_view name) {
  std::optional<size_t> found;
  for (size_t i = 0; i < header.size(); ++i) {
    if (header[i] != name) continue;
    if (found) {
      return InvalidArgument("line ", header.line(), ": columns ", *found + 1,
                             " and ", i + 1, " of the header are both named ",
                             QuoteForMessage(name),
                             "; give each a name of its own");
    }
    found = i;
  }
  return found;
}

// Find's, where there has to be one. `remedy` ends the message.
absl::StatusOr<size_t> Need(const CsvRow& header, absl::string_view name,
                            absl::string_view remedy) {
  SLUICE_ASSIGN_OR_RETURN(const std::optional<size_t> found,
                          Find(header, name));
  if (found) return *found;
  // A table with another delimiter looks like one column.
  const size_t other =
      header.size() == 1 ? header[0].find_first_of(";\t|,") : header[0].npos;
  if (other != header[0].npos) {
    return InvalidArgument(
        "line ", header.line(), ": the header has one column, ",
        QuoteForMessage(header[0]), "; if ",
        QuoteForMessage(header[0].substr(other, 1)),
        " stands between the columns, say so by --delimiter (--input-format "
        "tsv for tabs)");
  }
  return InvalidArgument("line ", header.line(), ": the header has no column ",
                         QuoteForMessage(name), "; it has ", NamesOf(header),
                         remedy);
}

absl::Status CheckHeader(const CsvRow& header) {
  const auto wrong = [&](const auto&... what) {
    return InvalidArgument("line ", header.line(), ": the header ", what...);
  };
  if (header.too_long()) return wrong("is too long; is this a table?");
  if (header.misquoted()) {
    return wrong(
        "has text behind a closing quote; double the quotes within a quoted "
        "field");
  }
  if (header.num_fields() > kMaxCsvFields) {
    return wrong("has ", header.num_fields(), " columns, and may have ",
                 kMaxCsvFields, "; leave some out");
  }
  for (size_t i = 0; i < header.size(); ++i) {
    if (const auto at = FindInvalidUtf8(header[i])) {
      return wrong("is not valid UTF-8 at byte ", *at + 1, " of column ", i + 1,
                   "; save the file as UTF-8");
    }
  }
  return absl::OkStatus();
}

// Returns what is wrong with the form of a row.
std::optional<LineError> CheckRow(const CsvRow& row, size_t num_columns) {
  if (row.misquoted()) {
    return LineError{"invalid_row",
                     "text stands behind a closing quote; double the quotes "
                     "within a quoted field",
                     ""};
  }
  if (row.num_fields() != num_columns) {
    return LineError{
        "invalid_row",
        absl::StrCat("the row has ", row.num_fields(),
                     row.num_fields() == 1 ? " field" : " fields",
                     ", and the header ", num_columns,
                     "; put a field that has the separator or a line end in it "
                     "in quotes, or add what is missing"),
        ""};
  }
  for (size_t i = 0; i < row.size(); ++i) {
    if (const auto at = FindInvalidUtf8(row[i])) {
      return LineError{
          "invalid_utf8",
          absl::StrCat("field ", i + 1, " is not valid UTF-8 at its byte ",
                       *at + 1, "; save the file as UTF-8"),
          ""};
    }
  }
  return std::nullopt;
}

}  // namespace

absl::Status ValidateTable(const v1::TableInput& table) {
  if (!table.delimiter().empty()) {
    const char c = table.delimiter().front();
    if (table.delimiter().size() != 1 || c == '"' ||
        (c != '\t' && !absl::ascii_isprint(static_cast<unsigned char>(c)))) {
      return InvalidArgument("the delimiter ",
                             QuoteForMessage(table.delimiter()),
                             " is not one ASCII character, as \",\" or \";\"");
    }
  }
  if (table.prompt().empty()) return absl::OkStatus();
  return ParseTemplate(table.prompt()).status();
}

absl::StatusOr<TableRows> TableRows::Create(const v1::TableInput& table,
                                            const CsvRow& header,
                                            size_t max_prompt_bytes) {
  SLUICE_RETURN_IF_ERROR(ValidateTable(table));
  SLUICE_RETURN_IF_ERROR(CheckHeader(header));
  TableRows rows;
  rows.num_columns_ = header.num_fields();
  rows.max_prompt_bytes_ = max_prompt_bytes;
  if (table.prompt().empty()) {
    SLUICE_ASSIGN_OR_RETURN(
        const size_t column,
        Need(header, kPromptColumn,
             "; say what to ask by --prompt, with a column as {NAME}"));
    rows.prompt_.push_back({"", column});
  } else {
    SLUICE_ASSIGN_OR_RETURN(std::vector<TemplatePart> parts,
                            ParseTemplate(table.prompt()));
    for (TemplatePart& part : parts) {
      Part& made = rows.prompt_.emplace_back();
      if (!part.is_column) {
        made.text = std::move(part.text);
        continue;
      }
      SLUICE_ASSIGN_OR_RETURN(
          made.column, Need(header, part.text, "; write {{ for a brace"));
    }
  }
  rows.id_name_ = table.id_column().empty() ? kIdColumn : table.id_column();
  if (table.id_column().empty()) {
    SLUICE_ASSIGN_OR_RETURN(rows.id_column_, Find(header, kIdColumn));
  } else {
    SLUICE_ASSIGN_OR_RETURN(rows.id_column_,
                            Need(header, table.id_column(), ""));
  }
  return rows;
}

TableRows::Prompt TableRows::Read(const CsvRow& row, int64_t index) const {
  Prompt out;
  if (!id_column_) out.custom_id = absl::StrCat("row-", index + 1);
  if ((out.error = CheckRow(row, num_columns_))) return out;
  if (id_column_) {
    const absl::string_view id = row[*id_column_];
    if (id.empty() || id.size() > kMaxIdBytes) {
      out.error =
          LineError{"invalid_request",
                    absl::StrCat("column ", QuoteForMessage(id_name_),
                                 ", the custom_id, must have 1 to ",
                                 kMaxIdBytes, " bytes, got ", id.size()),
                    "custom_id"};
      return out;
    }
    out.custom_id = std::string(id);
  }
  for (const Part& part : prompt_) {
    const absl::string_view piece =
        part.column ? row[*part.column] : absl::string_view(part.text);
    if (out.text.size() + piece.size() > max_prompt_bytes_) {
      out.error =
          LineError{"line_too_long",
                    absl::StrCat("the prompt of this row has more than ",
                                 max_prompt_bytes_, " bytes; shorten it"),
                    ""};
      out.text.clear();
      return out;
    }
    out.text.append(piece.data(), piece.size());
  }
  return out;
}

}  // namespace sluice
