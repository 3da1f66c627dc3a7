#pragma once

#include "absl/base/thread_annotations.h"
