#include "scheduler/plan/linear_program.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <optional>
#include <random>
#include <thread>
#include <vector>

namespace sluice {
namespace {

constexpr double kInfinity = LinearProgram::kInfinity;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
using Status = LinearSolution::Status;

// One side of a row or of a variable's bounds: a . x <= b.
struct HalfSpace {
  std::vector<double> a;
  double b;
};

// No vertex of the small programs below is as far out.
constexpr double kBox = 1e5;

std::vector<HalfSpace> HalfSpacesOf(const LinearProgram& p, double box) {
  const int n = p.num_variables();
  std::vector<HalfSpace> spaces;
  const auto add = [&](std::vector<double> a, double lo, double hi) {
    a.resize(n);
    if (std::isfinite(hi)) spaces.push_back({a, hi});
    if (!std::isfinite(lo)) return;
    for (double& value : a) value = -value;
    spaces.push_back({a, -lo});
  };
  for (int j = 0; j < n; ++j) {
    std::vector<double> unit(n);
    unit[j] = 1;
    add(unit, std::max(p.lo[j], -box), std::min(p.hi[j], box));
  }
  for (const LinearProgram::Row& row : p.rows) add(row.a, row.lo, row.hi);
  return spaces;
}

// The point where the chosen planes meet, if it is one.
std::optional<std::vector<double>> Meet(const std::vector<HalfSpace>& spaces,
                                        const std::vector<int>& chosen) {
  const size_t n = chosen.size();
  std::vector<std::vector<double>> m;
  for (const int c : chosen) {
    m.push_back(spaces[c].a);
    m.back().push_back(spaces[c].b);
  }
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t r = i + 1; r < n; ++r) {
      if (std::abs(m[r][i]) > std::abs(m[pivot][i])) pivot = r;
    }
    if (std::abs(m[pivot][i]) < 1e-9) return std::nullopt;
    std::swap(m[i], m[pivot]);
    for (size_t r = 0; r < n; ++r) {
      if (r == i) continue;
      const double factor = m[r][i] / m[i][i];
      for (size_t k = i; k <= n; ++k) m[r][k] -= factor * m[i][k];
    }
  }
  std::vector<double> x(n);
  for (size_t i = 0; i < n; ++i) x[i] = m[i][n] / m[i][i];
  return x;
}

// The best of all vertices within the box; nullopt if there is none.
std::optional<double> BestVertex(const LinearProgram& p, double box) {
  const std::vector<HalfSpace> spaces = HalfSpacesOf(p, box);
  const int n = p.num_variables();
  std::optional<double> best;
  std::vector<int> chosen;
  const auto visit = [&](auto&& self, int from) -> void {
    if (static_cast<int>(chosen.size()) < n) {
      for (int s = from; s < static_cast<int>(spaces.size()); ++s) {
        chosen.push_back(s);
        self(self, s + 1);
        chosen.pop_back();
      }
      return;
    }
    const auto x = Meet(spaces, chosen);
    if (!x.has_value()) return;
    for (const HalfSpace& space : spaces) {
      double value = 0;
      for (int j = 0; j < n; ++j) value += space.a[j] * (*x)[j];
      if (value > space.b + 1e-6) return;
    }
    double value = 0;
    for (int j = 0; j < n; ++j) value += p.cost[j] * (*x)[j];
    if (!best || value < *best) best = value;
  };
  visit(visit, 0);
  return best;
}

LinearProgram RandomProgram(std::mt19937_64& rng) {
  const auto below = [&](int n) { return static_cast<int>(rng() % n); };
  LinearProgram p;
  const int n = 1 + below(5);
  for (int j = 0; j < n; ++j) {
    const double lo = below(8) == 0 ? -kInfinity : below(7) - 3;
    const double width = below(6);
    const double hi =
        below(5) == 0 || !std::isfinite(lo) ? kInfinity : lo + width;
    p.AddVariable(below(11) - 5, lo, hi);
  }
  // Most have a point that satisfies all rows, the others may have one.
  const bool has_point = below(4) > 0;
  std::vector<double> point;
  for (int j = 0; j < n; ++j) {
    const double lo = std::isfinite(p.lo[j]) ? p.lo[j] : -3;
    point.push_back(std::min(p.hi[j], lo + below(4)));
  }
  const int rows = below(7);
  for (int i = 0; i < rows; ++i) {
    LinearProgram::Row& row = p.AddRow(-kInfinity, 0);
    double at_point = 0;
    for (int j = 0; j < n; ++j) {
      row.a[j] = below(3) == 0 ? 0 : below(9) - 4;
      at_point += row.a[j] * point[j];
    }
    const double b = has_point ? at_point : below(21) - 6;
    switch (below(4)) {
      case 0:
        row.lo = row.hi = b;  // an equation
        break;
      case 1:
        row.lo = b - below(9);
        row.hi = b + below(9);
        break;
      case 2:
        row.lo = b - below(9);
        row.hi = kInfinity;
        break;
      case 3:
        row.hi = b + below(9);
        break;
    }
  }
  return p;
}

TEST(LinearProgramTest, EqualsEnumerationOfVertices) {
  std::mt19937_64 rng(1);
  int optimal = 0, infeasible = 0, unbounded = 0;
  for (int i = 0; i < 1200; ++i) {
    SCOPED_TRACE(i);
    const LinearProgram p = RandomProgram(rng);
    const std::optional<double> best = BestVertex(p, kBox);
    const auto solution = Solve(p);
    ASSERT_TRUE(solution.ok()) << solution.status();
    if (!best.has_value()) {
      EXPECT_EQ(solution->status, Status::kInfeasible);
      ++infeasible;
    } else if (*BestVertex(p, 2 * kBox) < *best - 1) {
      // Only the box stopped it.
      EXPECT_EQ(solution->status, Status::kUnbounded);
      ++unbounded;
    } else {
      ASSERT_EQ(solution->status, Status::kOptimal);
      EXPECT_NEAR(solution->objective, *best, 1e-6 * (1 + std::abs(*best)));
      ++optimal;
    }
  }
  // All three kinds were there.
  EXPECT_GT(optimal, 500);
  EXPECT_GT(infeasible, 60);
  EXPECT_GT(unbounded, 60);
}

TEST(LinearProgramTest, SolvesWithoutRowsOrVariables) {
  LinearProgram none;
  auto solution = Solve(none);
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_EQ(solution->status, Status::kOptimal);
  EXPECT_EQ(solution->objective, 0);

  LinearProgram free_of_rows;
  free_of_rows.AddVariable(2, 3, 5);
  free_of_rows.AddVariable(-1, 3, 5);
  solution = Solve(free_of_rows);
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_EQ(solution->objective, 1);

  LinearProgram only_rows;
  only_rows.AddRow(1, 2);
  solution = Solve(only_rows);
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_EQ(solution->status, Status::kInfeasible);
}

TEST(LinearProgramTest, SolvesWhatIsScaledBadly) {
  // Bytes beside seconds: fractions of 1e11 bytes in 3e10, at 2e9 a second.
  LinearProgram p;
  const int near = p.AddVariable(0, 0, 1);
  const int far = p.AddVariable(0, 0, 1);
  const int t = p.AddVariable(1, 0, kInfinity);
  LinearProgram::Row& all = p.AddRow(1, 1);
  all.a[near] = all.a[far] = 1;
  p.AddRow(-kInfinity, 3e10).a[near] = 1e11;
  LinearProgram::Row& read = p.AddRow(0, kInfinity);
  read.a[t] = 1;
  read.a[far] = -1e11 / 2e9;
  const auto solution = Solve(p);
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_NEAR(solution->x[near], 0.3, 1e-9);
  EXPECT_NEAR(solution->objective, 35, 1e-6);
}

TEST(LinearProgramTest, ALowerBoundAboveTheUpperOneIsInfeasible) {
  LinearProgram p;
  p.AddVariable(1, 2, 1);
  auto solution = Solve(p);
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_EQ(solution->status, Status::kInfeasible);

  LinearProgram of_row;
  of_row.AddVariable(1, 0, 1);
  of_row.AddRow(2, 1);
  solution = Solve(of_row);
  ASSERT_TRUE(solution.ok()) << solution.status();
  EXPECT_EQ(solution->status, Status::kInfeasible);
}

TEST(LinearProgramTest, RefusesWhatIsNoNumber) {
  const auto base = [] {
    LinearProgram p;
    p.AddVariable(1, 0, 1);
    p.AddRow(0, 1).a[0] = 1;
    return p;
  };
  ASSERT_TRUE(Solve(base()).ok());
  std::vector<LinearProgram> bad;
  for (const double value : {kNaN, kInfinity, -kInfinity}) {
    bad.push_back(base());
    bad.back().cost[0] = value;
    bad.push_back(base());
    bad.back().rows[0].a[0] = value;
  }
  bad.push_back(base());
  bad.back().lo[0] = kNaN;
  bad.push_back(base());
  bad.back().lo[0] = kInfinity;
  bad.push_back(base());
  bad.back().hi[0] = -kInfinity;
  bad.push_back(base());
  bad.back().rows[0].hi = kNaN;
  bad.push_back(base());
  bad.back().rows[0].lo = kInfinity;
  bad.push_back(base());
  bad.back().rows[0].a.push_back(1);
  bad.push_back(base());
  bad.back().hi.clear();
  for (size_t i = 0; i < bad.size(); ++i) {
    EXPECT_EQ(Solve(bad[i]).status().code(), absl::StatusCode::kInvalidArgument)
        << i;
  }
}

TEST(LinearProgramTest, HopelessNumbersNeverAbort) {
  // Coefficients range from the smallest to the largest; the result is an
  // answer or a status.
  std::mt19937_64 rng(2);
  for (int i = 0; i < 300; ++i) {
    LinearProgram p;
    const auto wild = [&] {
      const int exponent = static_cast<int>(rng() % 600) - 300;
      return std::pow(10.0, exponent) * (rng() % 2 == 0 ? 1 : -1);
    };
    for (int j = 0; j < 4; ++j) p.AddVariable(wild(), 0, std::abs(wild()));
    for (int r = 0; r < 4; ++r) {
      LinearProgram::Row& row = p.AddRow(-kInfinity, wild());
      for (double& a : row.a) a = wild();
    }
    const auto solution = Solve(p);
    if (!solution.ok()) {
      EXPECT_EQ(solution.status().code(), absl::StatusCode::kInternal);
    }
  }
}

TEST(LinearProgramTest, ThreadsSolveAtTheSameTime) {
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t, &wrong] {
      for (int i = 1; i <= 100; ++i) {
        LinearProgram p;
        const int x = p.AddVariable(-1, 0, kInfinity);
        p.AddRow(-kInfinity, i + t).a[x] = 1;
        const auto solution = Solve(p);
        if (!solution.ok() || std::abs(solution->x[x] - (i + t)) > 1e-9) {
          ++wrong[t];
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, std::vector<int>(4));
}

}  // namespace
}  // namespace sluice
