#include "coordinator/cluster/links/name_resolver.h"

#include <resolv.h>

#include <utility>

#include "coordinator/cluster/links/link_address.h"

namespace sluice {
namespace {

constexpr size_t kMostQuestions = 1024;

}  // namespace

NameResolver::~NameResolver() {
  Thread thread;
  {
    MutexLock lock(&mu_);
    stopped_ = true;
    thread = std::move(thread_);
    changed_.NotifyAll();
  }
  thread.Join();
}

absl::Status NameResolver::Resolve(std::string host, Answer answer) {
  MutexLock lock(&mu_);
  if (stopped_) return absl::OkStatus();
  if (questions_.size() >= kMostQuestions) {
    return absl::ResourceExhaustedError("too many names wait to be looked up");
  }
  questions_.push_back({std::move(host), std::move(answer)});
  if (!thread_.joinable()) thread_ = Thread("resolver", [this] { Run(); });
  changed_.NotifyAll();
  return absl::OkStatus();
}

void NameResolver::Run() {
  // This thread's own: who asks can ask again, and nobody waits for long when
  // the program ends.
  res_init();
  _res.retrans = 2;  // seconds
  _res.retry = 1;
  for (;;) {
    Question question;
    {
      MutexLock lock(&mu_);
      while (questions_.empty() && !stopped_) changed_.Wait(&mu_);
      if (stopped_) return;
      question = std::move(questions_.front());
      questions_.pop_front();
    }
    question.answer(ResolveHost(question.host));
  }
}

}  // namespace sluice
