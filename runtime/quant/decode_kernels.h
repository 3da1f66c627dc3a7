#pragma once

#include <cstdint>

#include "runtime/quant/group_codec.h"
#include "runtime/quant/panel_codec.h"

namespace sluice {

// PanelCodec::Decode, compiled for each instruction set.
void DecodePanel(const PanelCodec& codec, float unit, const GroupParams* params,
                 const uint8_t* codes, void* out);

}  // namespace sluice
