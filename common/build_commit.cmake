# Writes OUTPUT, which defines BuildCommit(), if what it says has changed: at each build, so that only that file and the
# links after it follow the commit. SOURCE_DIR is the top of the tree.
set(commit "$Format:%H$") # by git archive
if(commit MATCHES "Format")
  set(commit unknown)
  find_program(GIT git)
  if(GIT AND EXISTS ${SOURCE_DIR}/.git)
    execute_process(COMMAND ${GIT} rev-parse HEAD WORKING_DIRECTORY ${SOURCE_DIR}
      OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
    if(NOT failed)
      set(commit ${head})
      execute_process(COMMAND ${GIT} status --porcelain --untracked-files=no WORKING_DIRECTORY ${SOURCE_DIR}
        OUTPUT_VARIABLE changes ERROR_QUIET)
    endif()
  endif()
endif()
string(SUBSTRING "${commit}" 0 12 commit)
if(changes)
  string(APPEND commit "-dirty")
endif()
file(CONFIGURE OUTPUT ${OUTPUT} @ONLY CONTENT [[#include "common/version.h"

namespace sluice {

const char* BuildCommit() { return "@commit@"; }

}  // namespace sluice
]])
