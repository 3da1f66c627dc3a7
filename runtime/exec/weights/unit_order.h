#pragma once

namespace sluice {

// The order in which sweeps use the units of a stage's weights: those of its
// layers, then those of its head, if it has any. A sweep may go through its
// layers several times (row by row), and then through the head several times or
// not at all: which, is known when it begins. Whoever reads ahead may go
// through a coming sweep's layers once before.
class UnitOrder {
 public:
  // Begins at the first sweep's first unit. `layers`, units of all layers, > 0.
  UnitOrder(int layers, int sections) : layers_(layers), sections_(sections) {}

  // Says how often the sweep that begins uses layers and head; unit() may have
  // gone into its layers before.
  void Begin(int layer_passes, int head_passes) {
    layer_passes_ = layer_passes;
    head_passes_ = head_passes;
    known_ = true;
    SkipWhatIsNotUsed();
  }

  // The next unit; -1: the next sweep must begin first.
  int unit() const {
    if (!known_ && (in_head_ || pass_ > 0)) return -1;
    return in_head_ ? layers_ + at_ : at_;
  }
  // Moves past unit(), which is not -1.
  void Next() {
    if (++at_ == (in_head_ ? sections_ : layers_)) {
      at_ = 0;
      ++pass_;
      if (known_) SkipWhatIsNotUsed();
    }
    held_later_ = held_later_ && AmongHeld();
  }

  // Has ahead() stop before units [begin, end), until told otherwise. With
  // `next_time`, those of them that are next are not meant, as long as no
  // others have come.
  void HoldBack(int begin, int end, bool next_time) {
    held_begin_ = begin;
    held_end_ = end;
    held_later_ = next_time && AmongHeld();
  }
  // The next unit, if it may be read ahead; else -1.
  int ahead() const { return AmongHeld() && !held_later_ ? -1 : unit(); }

 private:
  bool AmongHeld() const { return unit() >= held_begin_ && unit() < held_end_; }
  void SkipWhatIsNotUsed() {
    if (!in_head_ && pass_ >= layer_passes_) {
      in_head_ = true;
      pass_ = 0;
    }
    if (in_head_ && (sections_ == 0 || pass_ >= head_passes_)) {
      in_head_ = known_ = false;
      pass_ = 0;
    }
  }

  int layers_;
  int sections_;
  int layer_passes_ = 1;
  int head_passes_ = 1;
  bool known_ = false;  // of the sweep that unit() belongs to
  bool in_head_ = false;
  int pass_ = 0;
  int at_ = 0;
  int held_begin_ = 0, held_end_ = 0;
  bool held_later_ = false;  // once others have come
};

}  // namespace sluice
