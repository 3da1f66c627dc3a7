#pragma once

#include <cstdint>
#include <memory>

#include "runtime/text/tokenizer/tokenizer.h"

namespace sluice {

// Makes a tokenizer for models without one, whose weights are random anyway:
// token 1 is BOS and comes before a text, 2 is EOS, and 3 + b is the byte b. A
// later token t reads " t<t>", and 0 is special and reads "<unk>". Tokens from
// `vocab_size` (>= 1) on do not exist; Encode fails with kInvalidArgument for a
// text that needs them.
std::unique_ptr<Tokenizer> CreateDummyTokenizer(int32_t vocab_size);

}  // namespace sluice
