#pragma once

#include <functional>
#include <memory>
#include <string>

namespace grpc {
class Channel;
}  // namespace grpc

namespace sluice {

// Opens channels to the coordinator and to other workers; within one process
// they need no ports. Returns null for an address that does not exist (yet).
using ChannelFactory =
    std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;

}  // namespace sluice
