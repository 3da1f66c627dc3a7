#include "runtime/text/jinja/render.h"

#include "common/status_macros.h"
#include "runtime/text/jinja/builtins/from_json.h"
#include "runtime/text/jinja/interpreter.h"

namespace sluice::jinja {

absl::StatusOr<std::string> RenderTemplate(
    const Template& parsed, const nlohmann::ordered_json& variables,
    absl::CivilSecond now, Limits limits) {
  SLUICE_ASSIGN_OR_RETURN(const Value context, ContextFromJson(variables));
  const uint64_t input_bytes = ExtentOf(context).size;
  limits.work += 64 * input_bytes;
  limits.bytes += 4 * input_bytes;
  return Interpreter(parsed, *context.AsDict(), now, limits).Run();
}

}  // namespace sluice::jinja
