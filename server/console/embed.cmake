# cmake -DPAGE=FOLDER -DFILES="a.html;b.js" -DOUTPUT=FILE.cc -P embed.cmake
# Writes the files of the console's page as C++ (console_files.h).
set(types_html "text/html; charset=utf-8")
set(types_css "text/css; charset=utf-8")
set(types_js "text/javascript; charset=utf-8")
set(types_svg "image/svg+xml")
set(entries "")
foreach(name ${FILES})
  file(READ "${PAGE}/${name}" body)
  string(REGEX REPLACE ".*\\." "" ending "${name}")
  if(NOT DEFINED types_${ending})
    message(FATAL_ERROR "${name}: no content type is known for it")
  endif()
  string(FIND "${body}" ")page\"" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${name} has the text that ends it in C++")
  endif()
  string(APPEND entries "    {\"${name}\", \"${types_${ending}}\", R\"page(${body})page\"},\n")
endforeach()
file(WRITE "${OUTPUT}"
"#include \"server/console/console_files.h\"

namespace sluice {
namespace {

constexpr ConsoleFile kFiles[] = {
${entries}};

}  // namespace

absl::Span<const ConsoleFile> ConsoleFiles() { return kFiles; }

}  // namespace sluice
")
