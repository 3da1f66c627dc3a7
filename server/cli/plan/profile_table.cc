#include "server/cli/plan/profile_table.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/text/bytes_text.h"
#include "common/text/text.h"

namespace sluice {
namespace {

// Formats "12.3 G", for a unit that follows.
std::string Scaled(double value) {
  constexpr const char* kPrefixes[] = {"", "k", "M", "G", "T", "P"};
  size_t i = 0;
  while (value >= 1000 && i + 1 < std::size(kPrefixes)) {
    value /= 1000;
    ++i;
  }
  return absl::StrFormat("%.*f %s",
                         value < 10    ? 2
                         : value < 100 ? 1
                                       : 0,
                         value, kPrefixes[i]);
}

std::string BytesPerSecond(double rate) {
  return rate > 0 ? Scaled(rate) + "B/s" : "-";
}

std::string Size(uint64_t bytes) {
  return bytes == 0 ? "none" : BytesText(bytes);
}

std::string Seconds(double seconds) {
  if (seconds >= 1e-3) return absl::StrFormat("%.2f ms", seconds * 1e3);
  if (seconds >= 1e-6) return absl::StrFormat("%.1f us", seconds * 1e6);
  return absl::StrFormat("%.3g ns", seconds * 1e9);
}

// A table of right-aligned columns, the first of which is left-aligned.
class Columns {
 public:
  void Add(std::vector<std::string> row) { rows_.push_back(std::move(row)); }
  std::string Text() const {
    std::vector<size_t> widths;
    for (const auto& row : rows_) {
      widths.resize(std::max(widths.size(), row.size()));
      for (size_t i = 0; i < row.size(); ++i) {
        widths[i] = std::max(widths[i], row[i].size());
      }
    }
    std::string text;
    for (const auto& row : rows_) {
      std::string line = "  ";
      for (size_t i = 0; i < row.size(); ++i) {
        const std::string blanks(widths[i] - row[i].size(), ' ');
        if (i > 0) line += "  ";
        line += i == 0 ? row[i] + blanks : blanks + row[i];
      }
      while (line.back() == ' ') line.pop_back();
      text += line + "\n";
    }
    return text;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
};

std::string KeyValue(const char* key, const std::string& value) {
  return absl::StrFormat("%-24s %s\n", key, value);
}

std::string Compute(const char* what, const ComputeProfile& c) {
  std::string text = absl::StrCat(
      "\n", what, "\n",
      KeyValue("  memory, read", BytesPerSecond(c.memory_bytes_per_second)));
  if (!c.products.empty()) {
    constexpr int kRows[] = {1, 8, 64, 512, 2048};
    Columns products;
    std::vector<std::string> head = {"products, flops/s, by rows"};
    for (const int rows : kRows) head.push_back(absl::StrCat(rows));
    products.Add(head);
    for (const ProductRate& rate : c.products) {
      std::vector<std::string> row = {
          absl::StrCat(DTypeName(rate.dtype),
                       rate.weights == WeightFormat::kFull ? "" : ", weights ",
                       rate.weights == WeightFormat::kFull
                           ? ""
                           : WeightFormatName(rate.weights))};
      for (const int rows : kRows) {
        row.push_back(Scaled(rate.flops_by_rows.At(rows)));
      }
      products.Add(row);
    }
    for (const CodeRate& rate : c.codes) {
      std::vector<std::string> row = {
          absl::StrCat(DTypeName(rate.dtype), ", codes ", rate.format)};
      for (const int rows : kRows) {
        row.push_back(Scaled(rate.flops_by_rows.At(rows)));
      }
      products.Add(row);
    }
    text += products.Text();
  }
  constexpr int kContexts[] = {32, 128, 512, 2048};
  Columns attention;
  std::vector<std::string> head = {"attention, by positions"};
  for (const int context : kContexts) head.push_back(absl::StrCat(context));
  attention.Add(head);
  for (const AttentionRate& rate : c.attention) {
    std::vector<std::string> decode = {
        absl::StrCat(KvFormatName(rate.format), ", decode, B/s")};
    std::vector<std::string> prefill = {
        absl::StrCat(KvFormatName(rate.format), ", prefill, flops/s")};
    for (const int context : kContexts) {
      decode.push_back(Scaled(rate.decode_bytes_by_context.At(context)));
      prefill.push_back(Scaled(rate.prefill_flops_by_context.At(context)));
    }
    attention.Add(decode);
    attention.Add(prefill);
  }
  text += attention.Text();
  text +=
      KeyValue("  quantizing KV", BytesPerSecond(c.quantize_bytes_per_second));
  text += KeyValue("  dequantizing weights",
                   BytesPerSecond(c.dequantize_bytes_per_second));
  text +=
      KeyValue("  beside these",
               absl::StrCat(Seconds(c.layer_seconds), " a layer, ",
                            Seconds(c.row_element_seconds),
                            " for each row and element of the hidden state, ",
                            Seconds(c.logit_seconds), " a logit"));
  Columns threads;
  std::vector<std::string> count = {"threads"}, share = {"share of the rate"};
  for (const RateCurve::Point& point : c.share_by_threads.points()) {
    count.push_back(absl::StrFormat("%.0f", point.x));
    share.push_back(absl::StrFormat("%.0f %%", 100 * point.rate));
  }
  threads.Add(count);
  threads.Add(share);
  return text + threads.Text();
}

std::string Disk(const MachineProfile& p) {
  std::string text = "\ndisk\n";
  if (p.disk_bytes == 0) return text + "  no disk tier (--disk-dir)\n";
  text += KeyValue("  as the runtime reads beside computing",
                   BytesPerSecond(p.disk.read_bytes_per_second));
  text += KeyValue("  as the runtime writes",
                   BytesPerSecond(p.disk.write_bytes_per_second));
  Columns table;
  table.Add({"requests of", "in flight", "read", "write"});
  for (const DiskRate& rate : p.disk.rates) {
    const uint64_t kib = rate.request_bytes >> 10;
    table.Add({kib >= 1024 ? absl::StrCat(kib >> 10, " MiB")
                           : absl::StrCat(kib, " KiB"),
               absl::StrCat(rate.depth),
               BytesPerSecond(rate.read_bytes_per_second),
               BytesPerSecond(rate.write_bytes_per_second)});
  }
  return text + table.Text();
}

}  // namespace

std::string ProfileTable(const MachineProfile& p) {
  std::string text;
  text += KeyValue("machine", EscapeForTerminal(p.name));
  text += KeyValue("device", EscapeForTerminal(p.device));
  text += KeyValue("threads", absl::StrCat(p.threads));
  if (p.has_device()) {
    text += KeyValue("device memory", Size(p.device_memory_bytes));
  }
  text += KeyValue("host memory", Size(p.host_memory_bytes));
  text += KeyValue("disk space", Size(p.disk_bytes));
  if (p.has_device()) {
    text += Compute("device", p.device_compute);
    text += "\nwires\n";
    text += KeyValue("  host to device",
                     BytesPerSecond(p.host_to_device_bytes_per_second));
    text += KeyValue("  device to host",
                     BytesPerSecond(p.device_to_host_bytes_per_second));
  }
  text += Compute("host", p.host);
  text += Disk(p);
  text += "\nlinks\n";
  for (const LinkProfile& link : p.links) {
    text += KeyValue(
        link.peer.empty()
            ? "  to any peer"
            : absl::StrCat("  to ", EscapeForTerminal(link.peer)).c_str(),
        absl::StrCat(
            BytesPerSecond(link.bytes_per_second), ", ",
            Seconds(link.latency_seconds),
            link.peer.empty() ? " (over this machine's loopback)" : ""));
  }
  text += KeyValue("  a step, beside stages", Seconds(p.step_seconds));
  if (!p.rank_choices.empty()) text += "\nranks that compute together\n";
  for (const RankChoice& choice : p.rank_choices) {
    text += KeyValue(
        absl::StrCat("  ", choice.ranks).c_str(),
        absl::StrFormat("each %.0f %% of one's memory rate, %.0f %% of its "
                        "products; exchange %s, %s",
                        100 * choice.memory_share, 100 * choice.product_share,
                        BytesPerSecond(choice.exchange.bytes_per_second),
                        Seconds(choice.exchange.latency_seconds)));
  }
  if (!p.remarks.empty()) text += "\nodd\n";
  for (const std::string& remark : p.remarks) {
    text += absl::StrCat("  - ", EscapeForTerminal(remark), "\n");
  }
  return text;
}

}  // namespace sluice
