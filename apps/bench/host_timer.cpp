#include <chrono>
#include <cstring>

#include "bench/correctness.h"
#include "bench/timer.h"

namespace warpweave::bench {
namespace {

class HostTimer final : public Timer {
 public:
  HostTimer(Session& session, const Tensor& x) : session_(session), x_(x) {
    const GridShape out = session.output_shape();
    y_ = Tensor(x.dtype(), {out.batch, out.rows, out.columns, out.channels});
    std::memset(y_.data(), 0xff, y_.bytes());  // a NaN in every floating type
  }
  double run() override {
    const auto begin = std::chrono::steady_clock::now();
    session_.run_host(view(x_), view(y_));
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }
  bool finite() const override { return all_finite(y_); }

 private:
  Session& session_;
  const Tensor& x_;
  Tensor y_;
};

}  // namespace

std::unique_ptr<Timer> host_timer(Session& session, const Tensor& x) {
  return std::make_unique<HostTimer>(session, x);
}

}  // namespace warpweave::bench
