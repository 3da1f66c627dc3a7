#include "runtime/placement/matrix_layout.h"

#include "common/blocks.h"

namespace sluice {
namespace {

// oneDNN's packed panels are whole blocks of at most so many columns and
// inputs.
constexpr int32_t kPackedBlock = 64;
// PanelCodec: a header, a scale and a minimum in float16 for each group and
// input, and codes of columns by sixteens and inputs by pairs.
constexpr size_t kCodecHeader = 64;
constexpr size_t kGroupBytes = 4;
constexpr size_t kCodecColumns = 16;

}  // namespace

size_t PanelRules::PanelBytes(int32_t columns, int32_t k,
                              WeightFormat format) const {
  size_t bytes = 0;
  if (format != WeightFormat::kFull) {
    const size_t inputs = RoundUpTo(k, 2);
    const size_t codes = RoundUpTo(columns, kCodecColumns) * inputs;
    bytes = kCodecHeader +
            CeilDiv(columns, kPanelGroup) * inputs * kGroupBytes +
            (format == WeightFormat::kInt4 ? codes / 2 : codes);
  } else if (row_major) {
    bytes = ElementBytes(dtype) * columns * k;
  } else {
    bytes = ElementBytes(dtype) * RoundUpTo(columns, kPackedBlock) *
            RoundUpTo(k, kPackedBlock);
  }
  return RoundUpTo(bytes, kPanelAlignment);
}

MatrixLayout PanelRules::Layout(int32_t n, int32_t k, WeightFormat format,
                                size_t offset) const {
  MatrixLayout w;
  w.n = n;
  w.k = k;
  w.format = format;
  w.offset = offset;
  w.panel_width = kPanelColumns;
  w.whole_panel_bytes = PanelBytes(kPanelColumns, k, format);
  w.last_panel_bytes =
      PanelBytes(n - w.panel_begin(w.num_panels() - 1), k, format);
  w.bytes = w.whole_panel_bytes * (w.num_panels() - 1) + w.last_panel_bytes;
  return w;
}

MatrixLayout PanelRules::LayoutCoded(int32_t k,
                                     std::array<CodedColumns, 3> codes,
                                     size_t offset) const {
  MatrixLayout w;
  w.k = k;
  w.offset = offset;
  w.panel_width = kPanelColumns;
  for (CodedColumns& some : codes) {
    if (some.format == nullptr) continue;
    some.strip_bytes = RoundUpTo(some.format->strip_bytes(k), kPanelAlignment);
    w.n += some.columns;
    const ScaledCodes* const scaled = some.format->scaled;
    if (scaled != nullptr && scaled->any_order) {
      w.order_bytes = RoundUpTo(k, kPanelAlignment);
    }
  }
  w.codes = codes;
  w.bytes = w.CodedBytes(w.n) + w.num_panels() * w.order_bytes;
  w.last_panel_bytes = w.panel_bytes(w.num_panels() - 1);
  for (int panel = 0; panel < w.num_panels(); ++panel) {
    w.whole_panel_bytes = std::max(w.whole_panel_bytes, w.panel_bytes(panel));
  }
  return w;
}

int MatrixLayout::PanelAt(size_t at) const {
  int begin = 0;
  int end = num_panels();
  while (end - begin > 1) {
    const int middle = begin + (end - begin) / 2;
    (panel_offset(middle) <= at ? begin : end) = middle;
  }
  return begin;
}

}  // namespace sluice
