#include "common/compression/compression.h"

#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <limits>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/status_macros.h"

namespace sluice {
namespace {

constexpr size_t kBufferBytes = 64 << 10;
constexpr absl::string_view kGzipMagic = "\x1f\x8b";
constexpr absl::string_view kZstdMagic = "\x28\xb5\x2f\xfd";
constexpr int kGzipWindow = 15 + 16;  // the largest, with gzip's header
constexpr int kGzipMemory = 8;        // zlib's default
constexpr int kZstdWindow = 27;       // 128 MiB

// As many of the bytes as zlib's counters can count.
uInt Counter(size_t bytes) {
  return static_cast<uInt>(
      std::min<size_t>(bytes, std::numeric_limits<uInt>::max()));
}

class GzipDecompressor : public Decompressor {
 public:
  GzipDecompressor() { made_ = inflateInit2(&stream_, kGzipWindow) == Z_OK; }
  ~GzipDecompressor() override { inflateEnd(&stream_); }
  GzipDecompressor(const GzipDecompressor&) = delete;
  GzipDecompressor& operator=(const GzipDecompressor&) = delete;

  absl::StatusOr<size_t> Read(absl::string_view* data, char* out,
                              size_t size) override {
    if (!made_) return absl::ResourceExhaustedError("no memory for gzip");
    if (may_end_) {
      if (data->empty()) return 0;
      inflateReset(&stream_);  // another member
      may_end_ = false;
    }
    // zlib's interface lacks a const.
    stream_.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data->data()));
    stream_.avail_in = Counter(data->size());
    stream_.next_out = reinterpret_cast<Bytef*>(out);
    stream_.avail_out = Counter(size);
    const uInt in = stream_.avail_in;
    const uInt room = stream_.avail_out;
    const int result = inflate(&stream_, Z_NO_FLUSH);
    data->remove_prefix(in - stream_.avail_in);
    if (result == Z_STREAM_END) {
      may_end_ = true;
    } else if (result != Z_OK && result != Z_BUF_ERROR) {
      return DataLoss("its gzip data is damaged (",
                      stream_.msg == nullptr ? zError(result) : stream_.msg,
                      ")");
    }
    return room - stream_.avail_out;
  }
  bool may_end() const override { return may_end_; }

 private:
  z_stream stream_{};
  bool made_ = false;
  bool may_end_ = false;
};

class ZstdDecompressor : public Decompressor {
 public:
  ZstdDecompressor() : stream_(ZSTD_createDStream()) {
    ZSTD_DCtx_setParameter(stream_.get(), ZSTD_d_windowLogMax, kZstdWindow);
  }

  absl::StatusOr<size_t> Read(absl::string_view* data, char* out,
                              size_t size) override {
    if (may_end_ && data->empty()) return 0;
    ZSTD_inBuffer in = {data->data(), data->size(), 0};
    ZSTD_outBuffer made = {out, size, 0};
    const size_t result = ZSTD_decompressStream(stream_.get(), &made, &in);
    if (ZSTD_isError(result)) {
      return DataLoss("its zstd data is damaged, or can't be read in 128 MiB (",
                      ZSTD_getErrorName(result), ")");
    }
    data->remove_prefix(in.pos);
    may_end_ = result == 0;
    return made.pos;
  }
  bool may_end() const override { return may_end_; }

 private:
  struct Free {
    void operator()(ZSTD_DStream* stream) const { ZSTD_freeDStream(stream); }
  };
  const std::unique_ptr<ZSTD_DStream, Free> stream_;
  bool may_end_ = false;
};

class GzipCompressor : public Compressor {
 public:
  GzipCompressor() {
    made_ = deflateInit2(&stream_, Z_DEFAULT_COMPRESSION, Z_DEFLATED,
                         kGzipWindow, kGzipMemory, Z_DEFAULT_STRATEGY) == Z_OK;
  }
  ~GzipCompressor() override { deflateEnd(&stream_); }
  GzipCompressor(const GzipCompressor&) = delete;
  GzipCompressor& operator=(const GzipCompressor&) = delete;

 protected:
  absl::Status Run(absl::string_view data, Mode mode,
                   std::string* out) override {
    if (!made_) return absl::ResourceExhaustedError("no memory for gzip");
    const int flush = mode == Mode::kGoOn    ? Z_NO_FLUSH
                      : mode == Mode::kFlush ? Z_SYNC_FLUSH
                                             : Z_FINISH;
    std::array<Bytef, kBufferBytes> made;
    do {
      const uInt in = Counter(data.size());
      stream_.next_in =
          reinterpret_cast<Bytef*>(const_cast<char*>(data.data()));
      stream_.avail_in = in;
      stream_.next_out = made.data();
      stream_.avail_out = made.size();
      if (deflate(&stream_, flush) == Z_STREAM_ERROR) {
        return absl::InternalError("zlib refuses to compress");
      }
      data.remove_prefix(in - stream_.avail_in);
      out->append(reinterpret_cast<const char*>(made.data()),
                  made.size() - stream_.avail_out);
    } while (!data.empty() || stream_.avail_out == 0);
    return absl::OkStatus();
  }

 private:
  z_stream stream_{};
  bool made_ = false;
};

class ZstdCompressor : public Compressor {
 public:
  ZstdCompressor() : stream_(ZSTD_createCStream()) {
    ZSTD_CCtx_setParameter(stream_.get(), ZSTD_c_checksumFlag, 1);
  }

 protected:
  absl::Status Run(absl::string_view data, Mode mode,
                   std::string* out) override {
    const ZSTD_EndDirective directive = mode == Mode::kGoOn    ? ZSTD_e_continue
                                        : mode == Mode::kFlush ? ZSTD_e_flush
                                                               : ZSTD_e_end;
    ZSTD_inBuffer in = {data.data(), data.size(), 0};
    std::array<char, kBufferBytes> buffer;
    size_t left;
    do {
      ZSTD_outBuffer made = {buffer.data(), buffer.size(), 0};
      left = ZSTD_compressStream2(stream_.get(), &made, &in, directive);
      if (ZSTD_isError(left)) {
        return Internal("zstd fails: ", ZSTD_getErrorName(left));
      }
      out->append(buffer.data(), made.pos);
    } while (in.pos < in.size || (mode != Mode::kGoOn && left > 0));
    return absl::OkStatus();
  }

 private:
  struct Free {
    void operator()(ZSTD_CStream* stream) const { ZSTD_freeCStream(stream); }
  };
  const std::unique_ptr<ZSTD_CStream, Free> stream_;
};

}  // namespace

Compression CompressionOfName(absl::string_view name) {
  if (absl::EndsWithIgnoreCase(name, ".gz")) return Compression::kGzip;
  if (absl::EndsWithIgnoreCase(name, ".zst")) return Compression::kZstd;
  return Compression::kNone;
}

absl::string_view WithoutCompression(absl::string_view name) {
  return CompressionOfName(name) == Compression::kNone
             ? name
             : name.substr(0, name.rfind('.'));
}

DecompressingReader::DecompressingReader(Source source)
    : source_(std::move(source)), buffer_(kBufferBytes) {}

absl::Status DecompressingReader::Fill() {
  // What is left moves to the front: only a magic that comes in pieces.
  std::copy(data_.begin(), data_.end(), buffer_.begin());
  SLUICE_ASSIGN_OR_RETURN(
      const size_t n,
      source_(buffer_.data() + data_.size(), buffer_.size() - data_.size()));
  ended_ = n == 0;
  data_ = absl::string_view(buffer_.data(), data_.size() + n);
  return absl::OkStatus();
}

absl::Status DecompressingReader::Detect() {
  const auto may_become = [this](absl::string_view magic) {
    return data_.size() < magic.size() && absl::StartsWith(magic, data_);
  };
  while (!ended_ && (may_become(kGzipMagic) || may_become(kZstdMagic))) {
    SLUICE_RETURN_IF_ERROR(Fill());
  }
  detected_ = true;
  if (absl::StartsWith(data_, kGzipMagic)) {
    decompressor_ = std::make_unique<GzipDecompressor>();
  } else if (absl::StartsWith(data_, kZstdMagic)) {
    decompressor_ = std::make_unique<ZstdDecompressor>();
  }
  return absl::OkStatus();
}

absl::StatusOr<size_t> DecompressingReader::TryRead(char* out, size_t size) {
  if (!detected_) SLUICE_RETURN_IF_ERROR(Detect());
  if (decompressor_ == nullptr) {
    if (data_.empty()) return ended_ ? 0 : source_(out, size);
    const size_t n = data_.copy(out, size);
    data_.remove_prefix(n);
    return n;
  }
  while (true) {
    SLUICE_ASSIGN_OR_RETURN(const size_t n,
                            decompressor_->Read(&data_, out, size));
    if (n > 0) return n;
    if (!data_.empty()) continue;
    if (ended_ && decompressor_->may_end()) return 0;
    if (ended_) {
      return absl::DataLossError(
          "its compressed data ends too early: the file was cut");
    }
    SLUICE_RETURN_IF_ERROR(Fill());
  }
}

absl::StatusOr<size_t> DecompressingReader::Read(char* out, size_t size) {
  SLUICE_RETURN_IF_ERROR(status_);
  absl::StatusOr<size_t> read = TryRead(out, size);
  status_ = read.status();
  return read;
}

std::unique_ptr<Compressor> Compressor::Make(Compression compression) {
  if (compression == Compression::kGzip) {
    return std::make_unique<GzipCompressor>();
  }
  return std::make_unique<ZstdCompressor>();
}

}  // namespace sluice
