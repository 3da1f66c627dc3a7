#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <utility>

namespace sluice {

// A raw connection to a port of loopback, to send what no HTTP library would.
class HttpClient {
 public:
  explicit HttpClient(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(
        connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)),
        0);
  }
  HttpClient(HttpClient&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  ~HttpClient() {
    if (fd_ >= 0) close(fd_);
  }

  int fd() const { return fd_; }
  void Send(const std::string& text) const {
    send(fd_, text.data(), text.size(), MSG_NOSIGNAL);
  }
  // Reads until the server closes.
  std::string ReadAll() const {
    std::string all;
    char buffer[4096];
    ssize_t n;
    while ((n = recv(fd_, buffer, sizeof(buffer), 0)) > 0) {
      all.append(buffer, static_cast<size_t>(n));
    }
    return all;
  }
  // Reads until `end` has come, or the server closes.
  std::string ReadUntil(const std::string& end) const {
    std::string all;
    char c;
    while (!all.ends_with(end) && recv(fd_, &c, 1, 0) == 1) all.push_back(c);
    return all;
  }

 private:
  int fd_;
};

// Sends `request` over a connection of its own and reads until the server
// closes.
inline std::string HttpExchange(int port, const std::string& request) {
  const HttpClient client(port);
  client.Send(request);
  return client.ReadAll();
}

// The whole answer, with its headers.
inline std::string HttpGet(int port, const std::string& path,
                           const std::string& headers = "") {
  return HttpExchange(
      port, "GET " + path + " HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" +
                headers + "\r\n");
}

}  // namespace sluice
