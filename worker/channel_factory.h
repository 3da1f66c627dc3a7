#pragma once

#include <functional>
#include <memory>
#include <string>

namespace grpc {
class Channel;
}  // namespace grpc

namespace sluice {

// Opens channels to the coordinator and to other workers. Within one process
// they need no ports. Null for an address that is not there (yet).
using ChannelFactory =
    std::function<std::shared_ptr<grpc::Channel>(const std::string& address)>;

}  // namespace sluice
