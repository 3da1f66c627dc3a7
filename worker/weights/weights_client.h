#pragma once

#include <memory>
#include <string>

#include "runtime/model/pieces/piece_source.h"
#include "worker/channel_factory.h"

namespace sluice {

// A source of pieces at the WeightsService of `address`. `name` is for
// messages.
std::shared_ptr<PieceSource> MakeWeightsClient(const ChannelFactory& channels,
                                               const std::string& address,
                                               const std::string& name);

}  // namespace sluice
