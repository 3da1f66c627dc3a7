#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

namespace sluice {

// Checks of an option's value, for ->check(...). CLI11 puts the message after
// the flag's name.

// The value must be UTF-8, as every string in a message.
CLI::Validator Utf8Text();
// The value must be >= `min`, or in [`min`, `max`]; whole for the first two.
CLI::Validator AtLeast(int64_t min);
CLI::Validator WholeFrom(int64_t min, int64_t max);
CLI::Validator From(double min, double max);

// Returns "host:port" for an address as people write it: without "http://" or
// "grpc://" and a slash at the end, and with `port` if it has none. Targets
// that name gRPC's resolver ("unix:...", "dns:host", "ipv4:1.2.3.4:80") stay.
std::string WithDefaultPort(const std::string& address, int port);

}  // namespace sluice
