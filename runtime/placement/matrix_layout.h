#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "common/blocks.h"
#include "common/number_format.h"
#include "runtime/model/code_format.h"

namespace sluice {

// Columns in a panel. A panel of k x 128 in the CPU's cache, beside a tile of
// 128 x k, is as large as it may be for the usual k; and no layout depends on
// the number of threads.
inline constexpr int32_t kPanelColumns = 128;
// Alignment of panels within a packed unit. A PackedView's addresses must have
// it too.
inline constexpr size_t kPanelAlignment = 64;
// Neighbouring columns of a quantized panel that share a scale and a minimum.
inline constexpr int32_t kPanelGroup = 64;

inline size_t ElementBytes(DType dtype) {
  return dtype == DType::kFloat32 ? 4 : 2;
}

// Neighbouring columns of a matrix in the checkpoint's codes: whole strips, but
// for the matrix's last.
struct CodedColumns {
  int32_t columns = 0;
  const CodeFormat* format = nullptr;
  size_t strip_bytes = 0;  // a multiple of kPanelAlignment

  size_t BytesOf(int32_t some) const {
    return CeilDiv(static_cast<size_t>(std::clamp(some, 0, columns)),
                   kStripColumns) *
           strip_bytes;
  }
};

// The layout of a matrix [n, k] in a packed unit: panels of output columns, one
// after the other, each beginning at a multiple of kPanelAlignment. All panels
// but the last are equally wide. Made by PanelRules::Layout; plain data.
struct MatrixLayout {
  int32_t n = 0;
  int32_t k = 0;
  WeightFormat format = WeightFormat::kFull;
  size_t offset = 0;  // of panel 0 in the packed unit
  size_t bytes = 0;   // of all panels, a multiple of kPanelAlignment
  int32_t panel_width = 0;
  // Of a panel of panel_width columns, the largest of coded ones.
  size_t whole_panel_bytes = 0;
  size_t last_panel_bytes = 0;
  // The columns of Q, K and V may be in codes of their own. Of a matrix that is
  // not coded, none; else all of them, and `format` is kFull.
  std::array<CodedColumns, 3> codes;
  // At the head of each panel: a byte for the group of each input, where codes
  // have these in any order. A multiple of kPanelAlignment; 0: there are none.
  size_t order_bytes = 0;
  // Tells orders of packing apart, as far as they depend on n and k: part of
  // what identifies a packed unit. Set by MatrixPacker::Prepare.
  uint64_t packing = 0;

  int32_t num_panels() const {
    return panel_width == 0 ? 0 : (n + panel_width - 1) / panel_width;
  }
  // Columns [panel_begin, panel_end) of the product, rows of the weight.
  int32_t panel_begin(int panel) const { return panel * panel_width; }
  int32_t panel_end(int panel) const {
    return std::min(n, (panel + 1) * panel_width);
  }
  bool coded() const { return codes[0].format != nullptr; }
  // Whether GEMMs must make numbers of what lies in the packed unit.
  bool quantized() const { return coded() || format != WeightFormat::kFull; }
  // Returns a panel's offset in the packed unit.
  size_t panel_offset(int panel) const {
    return offset + (coded() ? CodedBytes(panel_begin(panel)) +
                                   static_cast<size_t>(panel) * order_bytes
                             : static_cast<size_t>(panel) * whole_panel_bytes);
  }
  size_t panel_bytes(int panel) const {
    if (coded()) {
      return CodedBytes(panel_end(panel)) - CodedBytes(panel_begin(panel)) +
             order_bytes;
    }
    return panel + 1 == num_panels() ? last_panel_bytes : whole_panel_bytes;
  }
  // Returns the panel that has the byte at `at` in the packed unit, of those
  // from `offset` on; the last one's end beyond.
  int PanelAt(size_t at) const;
  // Returns the codes of a column of a coded matrix.
  const CodedColumns& CodesAt(int32_t column) const {
    size_t i = 0;
    while (column >= codes[i].columns) column -= codes[i++].columns;
    return codes[i];
  }
  // Returns the bytes of the strips of a coded matrix's first columns.
  size_t CodedBytes(int32_t columns) const {
    size_t bytes = 0;
    for (const CodedColumns& some : codes) {
      bytes += some.BytesOf(columns);
      columns -= some.columns;
    }
    return bytes;
  }
};

// The rules that sizes of packed matrices depend on.
struct PanelRules {
  DType dtype = DType::kFloat32;        // of the elements of full matrices
  DType table_dtype = DType::kFloat32;  // of tables of which rows are looked up
  // Full matrices are row-major, all panels together one matrix without gaps.
  // Else each panel is packed by oneDNN, in whole blocks of columns and inputs.
  bool row_major = false;
  // Whether matrices may keep the checkpoint's codes.
  bool keeps_codes = false;

  // The rules of the CPU backend, which computes in float32 what is in float16,
  // and of a GPU's.
  static PanelRules Cpu(DType dtype) {
    return {dtype == DType::kFloat16 ? DType::kFloat32 : dtype, dtype, false,
            true};
  }
  static PanelRules Gpu(DType dtype) { return {dtype, dtype, true, false}; }

  // Whether each panel of a gated MLP's first matrix has some gate columns and
  // then the same up columns; else all gate columns come before all up columns.
  // GEMMs on the CPU finish a tile at a time, which then has all that the
  // activation needs.
  bool interleaves_gate() const { return !row_major; }
  // Whether GEMMs may add a plain MLP's first bias before they round their
  // results, and so want it in dtype, too: cuBLASLt does.
  bool wants_typed_bias() const {
    return row_major && dtype != DType::kFloat32;
  }

  // The bytes of a panel of `columns`, a multiple of kPanelAlignment, or a
  // bound of them where oneDNN packs it.
  size_t PanelBytes(int32_t columns, int32_t k, WeightFormat format) const;
  // Returns how W, [n, k], lies from `offset` (a multiple of kPanelAlignment)
  // on. REQUIRES: n and k are above 0.
  MatrixLayout Layout(int32_t n, int32_t k, WeightFormat format,
                      size_t offset) const;
  // Returns the same for a matrix in codes: columns that add up to n, whole
  // strips but for the last. REQUIRES: k is a multiple of each format's block.
  MatrixLayout LayoutCoded(int32_t k, std::array<CodedColumns, 3> codes,
                           size_t offset) const;
};

}  // namespace sluice
