#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace sluice {

// Of an option's value, with ->check(...). The message goes after the flag's
// name.

// UTF-8, as all that goes into a message must be.
CLI::Validator Utf8Text();
// A number of at least `least`, or within the limits, or above the lower one.
CLI::Validator AtLeast(int64_t least);
CLI::Validator From(double least, double most);
CLI::Validator AboveUpTo(double below, double most);

// "host:port" for an address as people write it: without "http://" or
// "grpc://" and a slash at the end, and with `port` if it has none. Targets
// that name gRPC's resolver ("unix:...", "dns:host", "ipv4:1.2.3.4:80") stay.
std::string WithDefaultPort(const std::string& address, int port);

}  // namespace sluice
