#pragma once

#include <cuda_runtime.h>

#include <functional>
#include <string>

// Streams, what they have to do, and when it is done; and what may happen to a
// device.

namespace sluice::emulation {

// The moments at which streams do their work. What events and waits promise
// holds in each case, and nothing else does: so a wait that is missing is seen
// as wrong bytes.
enum class Timing {
  // Work is done in the call that begins it. A kernel that fails does so there,
  // too.
  kAtOnce,
  // Kernels, and what follows them in their stream, are not done before
  // somebody waits for them; copies elsewhere are done at once. This shows
  // copies that don't wait for kernels. A kernel that fails takes the device
  // with it.
  kLateKernels,
  // Copies in streams are not done before somebody has waited for some time;
  // kernels are done at once. This shows kernels that don't wait for copies.
  kLateCopies,
};
// Does what is left to do, and changes the timing for what follows.
void SetTiming(Timing timing);
// Does what SetTiming() does, with what the environment's SLUICE_TEST_TIMING
// says: "late_kernels", "late_copies", or nothing or "at_once".
void SetTimingOfTheTest();

// Breaks the device: from now on every call fails with this error, as after a
// kernel that ran astray. With cudaSuccess the device is repaired, as no real
// one is without a new process. `what` goes with the error's name.
void LoseDevice(cudaError_t error, const std::string& what = "");

// Sets how many devices there are; one at first. They share their memory, and
// refuse each other's streams and events.
void SetDeviceCount(int count);

// Sets the driver's version, as CUDA counts them; 0: there is none. At first,
// it is one that is new enough.
void SetDriverVersion(int version);

// Sets the devices' compute capability, 10 * major + minor; at first, it is
// that which kernels are compiled for.
void SetCapability(int capability);

// Graphs that were launched since the last call; graphs that live.
int TakeGraphLaunches();
int LiveGraphs();

// The rest is for the emulation itself.

enum class WorkKind { kKernel, kCopy, kOther };
// Puts the work behind what `stream` has to do, or does it at once. An error
// that it returns later breaks the device.
cudaError_t Enqueue(cudaStream_t stream, WorkKind kind,
                    std::function<cudaError_t()> work);
// Whether there is such a stream, of any device or of the calling thread's.
bool IsStream(cudaStream_t stream);
bool IsStreamHere(cudaStream_t stream);
// Whether the stream is being captured; and what is said of a call that may not
// be made then, of that stream or by this thread, after which the capture is of
// no use: OK if there is none.
bool IsCapturing(cudaStream_t stream);
cudaError_t BreakCaptureOf(cudaStream_t stream);
cudaError_t BreakCaptureHere();
// Waits for all that stream 0 has to do, as calls without a stream do first.
cudaError_t FinishStreamZero();
cudaError_t FinishDevice();
Timing CurrentTiming();
// Return the error that LoseDevice or a kernel set, and its text.
cudaError_t LostError();
std::string LostText();
// The current device is the calling thread's.
int CurrentDevice();
cudaError_t SetCurrentDevice(int device);
int DeviceCount();
int DriverVersion();
int Capability();
// Makes `error` the calling thread's last one; returns it.
cudaError_t Record(cudaError_t error);

}  // namespace sluice::emulation
