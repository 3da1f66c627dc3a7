#pragma once

#include <string>

namespace sluice {

// A size for people: "1.5 GiB", "12.0 MiB", "3.5 KiB", "17 bytes".
std::string BytesText(double bytes);

}  // namespace sluice
