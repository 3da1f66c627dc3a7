#include "scheduler/plan/linear_program.h"

#include <glpk.h>

#include <algorithm>
#include <cmath>
#include <csetjmp>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr double kTolerance = 1e-6;

absl::Status Invalid(absl::string_view what, size_t index) {
  return InvalidArgument("linear program: ", what, " ", index);
}

// lo and hi can bound something: no NaN, no infinity that none can reach.
bool AreBounds(double lo, double hi) {
  return !std::isnan(lo) && !std::isnan(hi) && lo != LinearProgram::kInfinity &&
         hi != -LinearProgram::kInfinity;
}

absl::Status Check(const LinearProgram& p) {
  const size_t n = p.cost.size();
  if (p.lo.size() != n || p.hi.size() != n) {
    return InvalidArgument("linear program: ", n, " costs, but ", p.lo.size(),
                           " and ", p.hi.size(), " bounds");
  }
  for (size_t j = 0; j < n; ++j) {
    if (!std::isfinite(p.cost[j])) return Invalid("cost of variable", j);
    if (!AreBounds(p.lo[j], p.hi[j])) return Invalid("bounds of variable", j);
  }
  for (size_t i = 0; i < p.rows.size(); ++i) {
    const LinearProgram::Row& row = p.rows[i];
    if (row.a.size() > n) return Invalid("too many coefficients in row", i);
    if (!std::all_of(row.a.begin(), row.a.end(),
                     [](double a) { return std::isfinite(a); })) {
      return Invalid("coefficients of row", i);
    }
    if (!AreBounds(row.lo, row.hi)) return Invalid("bounds of row", i);
  }
  return absl::OkStatus();
}

bool HasEmptyRange(const LinearProgram& p) {
  for (size_t j = 0; j < p.cost.size(); ++j) {
    if (p.lo[j] > p.hi[j]) return true;
  }
  return std::any_of(p.rows.begin(), p.rows.end(),
                     [](const LinearProgram::Row& r) { return r.lo > r.hi; });
}

int BoundsKind(double lo, double hi) {
  if (lo == hi) return GLP_FX;
  if (std::isinf(lo)) return std::isinf(hi) ? GLP_FR : GLP_UP;
  return std::isinf(hi) ? GLP_LO : GLP_DB;
}

// The data that a call of GLPK works on: nothing here has a destructor that a
// jump out of GLPK would skip.
struct Call {
  const LinearProgram* program;
  bool presolve;
  // Room for num_variables + 1 each.
  int* indices;
  double* values;
  double* x;  // num_variables
  int status = GLP_UNDEF;
  int error = 0;
  char message[200] = "";
  std::jmp_buf jump;
};

int OnOutput(void* info, const char* text) {
  auto* call = static_cast<Call*>(info);
  std::strncpy(call->message, text, sizeof(call->message) - 1);
  return 1;  // and nothing is printed
}

void OnError(void* info) { std::longjmp(static_cast<Call*>(info)->jump, 1); }

void RunGlpk(Call* call) {
  const LinearProgram& p = *call->program;
  const int n = p.num_variables();
  const int m = static_cast<int>(p.rows.size());
  glp_prob* problem = glp_create_prob();
  if (m > 0) glp_add_rows(problem, m);
  if (n > 0) glp_add_cols(problem, n);
  for (int j = 0; j < n; ++j) {
    glp_set_obj_coef(problem, j + 1, p.cost[j]);
    glp_set_col_bnds(problem, j + 1, BoundsKind(p.lo[j], p.hi[j]), p.lo[j],
                     p.hi[j]);
  }
  for (int i = 0; i < m; ++i) {
    const LinearProgram::Row& row = p.rows[i];
    glp_set_row_bnds(problem, i + 1, BoundsKind(row.lo, row.hi), row.lo,
                     row.hi);
    int used = 0;
    for (int j = 0; j < static_cast<int>(row.a.size()); ++j) {
      if (row.a[j] == 0) continue;
      ++used;
      call->indices[used] = j + 1;
      call->values[used] = row.a[j];
    }
    glp_set_mat_row(problem, i + 1, used, call->indices, call->values);
  }
  glp_scale_prob(problem, GLP_SF_AUTO);
  glp_smcp parameters;
  glp_init_smcp(&parameters);
  parameters.msg_lev = GLP_MSG_OFF;
  parameters.presolve = call->presolve ? GLP_ON : GLP_OFF;
  // Without the presolver the first phase decides whether there is a solution
  // at all, before the second may find it unbounded.
  parameters.meth = GLP_PRIMAL;
  call->error = glp_simplex(problem, &parameters);
  if (call->error == GLP_ENOPFS) {
    call->status = GLP_NOFEAS;
  } else if (call->error == 0) {
    call->status = glp_get_status(problem);
  }
  for (int j = 0; j < n; ++j) {
    call->x[j] = glp_get_col_prim(problem, j + 1);
  }
  glp_delete_prob(problem);
}

// False if GLPK gave up with an error; call->message says which.
bool RunGuarded(Call* call) {
  glp_init_env();
  glp_term_hook(OnOutput, call);
  glp_term_out(GLP_OFF);
  if (setjmp(call->jump) == 0) {
    glp_error_hook(OnError, call);
    RunGlpk(call);
    glp_free_env();
    return true;
  }
  glp_free_env();
  return false;
}

double Dot(const std::vector<double>& a, const std::vector<double>& x,
           double* magnitude) {
  double sum = 0;
  for (size_t j = 0; j < a.size(); ++j) {
    sum += a[j] * x[j];
    *magnitude = std::max(*magnitude, std::abs(a[j] * x[j]));
  }
  return sum;
}

bool Within(double value, double lo, double hi, double magnitude) {
  const double slack = kTolerance * (1 + magnitude);
  return std::isfinite(value) && value >= lo - slack && value <= hi + slack;
}

bool IsFeasible(const LinearProgram& p, const std::vector<double>& x) {
  for (size_t j = 0; j < x.size(); ++j) {
    if (!Within(x[j], p.lo[j], p.hi[j], std::abs(x[j]))) return false;
  }
  return std::all_of(p.rows.begin(), p.rows.end(),
                     [&x](const LinearProgram::Row& row) {
                       double magnitude = 0;
                       const double value = Dot(row.a, x, &magnitude);
                       return Within(value, row.lo, row.hi, magnitude);
                     });
}

}  // namespace

int LinearProgram::AddVariable(double cost_of_it, double min, double max) {
  cost.push_back(cost_of_it);
  lo.push_back(min);
  hi.push_back(max);
  return num_variables() - 1;
}

LinearProgram::Row& LinearProgram::AddRow(double min, double max) {
  rows.push_back({std::vector<double>(cost.size()), min, max});
  return rows.back();
}

absl::StatusOr<LinearSolution> Solve(const LinearProgram& program) {
  SLUICE_RETURN_IF_ERROR(Check(program));
  LinearSolution solution;
  if (HasEmptyRange(program)) return solution;

  const size_t n = program.cost.size();
  std::vector<int> indices(n + 1);
  std::vector<double> values(n + 1);
  solution.x.resize(n);
  Call call = {.program = &program,
               .indices = indices.data(),
               .values = values.data(),
               .x = solution.x.data()};
  // The presolver changes the problem: what one way does not solve, the other
  // may.
  for (const bool presolve : {false, true}) {
    call.presolve = presolve;
    call.status = GLP_UNDEF;
    if (!RunGuarded(&call)) continue;
    if (call.status == GLP_OPT && IsFeasible(program, solution.x)) {
      double magnitude = 0;
      solution.objective = Dot(program.cost, solution.x, &magnitude);
      solution.status = LinearSolution::Status::kOptimal;
      return solution;
    }
    if (call.status == GLP_NOFEAS) {
      solution.status = LinearSolution::Status::kInfeasible;
      return solution;
    }
    if (call.status == GLP_UNBND) {
      solution.status = LinearSolution::Status::kUnbounded;
      return solution;
    }
  }
  return Internal("linear program of ", n, " variables and ",
                  program.rows.size(), " rows: GLPK found no answer (code ",
                  call.error, ", status ", call.status, ") ", call.message);
}

}  // namespace sluice
