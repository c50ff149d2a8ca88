#include "http/exchange.h"

namespace onelane {
namespace {

class Exchange final : public HttpExchange {
 public:
  Exchange(std::shared_ptr<Mailbox> mailbox, std::shared_ptr<Answer> answer)
      : mailbox_(std::move(mailbox)), answer_(std::move(answer)) {}

  ~Exchange() override {
    if (!answered_) mailbox_->send({std::move(answer_), Command::Abandon{}});
  }
  Exchange(const Exchange&) = delete;
  Exchange& operator=(const Exchange&) = delete;

  void respond(HttpResponse response) override {
    answered_ = true;
    count(response.body.size());
    mailbox_->send({answer_, Command::Respond{std::move(response)}});
  }

  void start(HttpResponse head) override {
    count(head.body.size());
    mailbox_->send({answer_, Command::Start{std::move(head)}});
  }

  void write(std::string piece) override {
    if (piece.empty() || answer_->gone.load(std::memory_order_relaxed)) return;
    count(piece.size());
    mailbox_->send({answer_, Command::Write{std::move(piece)}});
  }

  void finish() override {
    answered_ = true;
    mailbox_->send({answer_, Command::Finish{}});
  }

  size_t queued_bytes() const override {
    // What a dead client left in the queue waits for nobody.
    return answer_->gone.load(std::memory_order_relaxed) ? 0 : answer_->queued_bytes.load(std::memory_order_relaxed);
  }

  void on_close(std::function<void()> closed) override {
    mailbox_->send({answer_, Command::OnClose{std::move(closed)}});
  }

 private:
  void count(size_t bytes) { answer_->queued_bytes.fetch_add(bytes, std::memory_order_relaxed); }

  const std::shared_ptr<Mailbox> mailbox_;
  std::shared_ptr<Answer> answer_;
  std::atomic<bool> answered_{false};
};

}  // namespace

void Mailbox::send(Command command) {
  std::lock_guard lock(mutex_);
  if (!open_) return;  // the command dies with the caller's stack, after the lock
  commands_.push_back(std::move(command));
  if (commands_.size() == 1) wake_();
}

std::vector<Command> Mailbox::take() {
  std::vector<Command> taken;
  std::lock_guard lock(mutex_);
  taken.swap(commands_);
  return taken;
}

void Mailbox::close() {
  std::vector<Command> dropped;  // destroyed after the lock: a callback may own an exchange
  std::lock_guard lock(mutex_);
  open_ = false;
  dropped.swap(commands_);
}

std::shared_ptr<HttpExchange> make_exchange(std::shared_ptr<Mailbox> mailbox, std::shared_ptr<Answer> answer) {
  return std::make_shared<Exchange>(std::move(mailbox), std::move(answer));
}

}  // namespace onelane
