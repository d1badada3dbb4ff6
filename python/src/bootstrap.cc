#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <memory>
#include <string>
#include <utility>

#include "arguments.h"
#include "bindings.h"
#include "failures.h"
#include "gil.h"
#include "integers.h"
#include "kvferry/bootstrap_server.h"
#include "manager_core.h"
#include "with_statement.h"

namespace kvferry::python {
namespace {

class ServerCore final : public LiveObject {
 public:
  explicit ServerCore(std::unique_ptr<BootstrapServer> server) : server_(std::move(server)) {}
  ~ServerCore() override {
    if (forked()) {
      static_cast<void>(server_.release());
      return;
    }
    without_gil([this] { server_.reset(); });
  }
  void stop() override { server_->stop(); }
  BootstrapServer& use() const {
    if (forked()) refuse_forked("bootstrap server");
    return *server_;
  }

 private:
  std::unique_ptr<BootstrapServer> server_;
};

struct BoundServer {
  std::shared_ptr<ServerCore> core;

  void stop() const {
    BootstrapServer& server = core->use();
    without_gil([&] { server.stop(); });
  }
};

BoundServer start(const BootstrapServerOptions* options, LiveObjects& live) {
  const BootstrapServerOptions chosen = options == nullptr ? BootstrapServerOptions{} : *options;
  auto server = unwrap(without_gil([&] { return BootstrapServer::start(chosen); }));
  BoundServer bound{std::make_shared<ServerCore>(std::move(server))};
  live.add(bound.core);
  return bound;
}

void bind_server_options(nb::module_& module) {
  nb::class_<BootstrapServerOptions> type(
      module, "BootstrapServerOptions",
      R"(host: address to bind. port: 0: any free one. cluster_token_file: empty: no HMAC, loopback only.

max_superseded: incarnations remembered as replaced.)");
  type.def(
          "__init__",
          [](BootstrapServerOptions* self, std::string host, const Whole& port,
             std::string cluster_token_file, const Whole& max_rows, const Whole& max_body_bytes,
             const Whole& max_superseded) {
            new (self)
                BootstrapServerOptions{std::move(host),
                                       to_number<std::uint16_t>(port, "port"),
                                       std::move(cluster_token_file),
                                       to_number<std::uint32_t>(max_rows, "max_rows"),
                                       to_number<std::uint32_t>(max_body_bytes, "max_body_bytes"),
                                       to_number<std::uint32_t>(max_superseded, "max_superseded")};
          },
          nb::arg("host") = "127.0.0.1", nb::arg("port") = 0, nb::arg("cluster_token_file") = "",
          nb::arg("max_rows") = 65'536, nb::arg("max_body_bytes") = 65'536,
          nb::arg("max_superseded") = 65'536)
      .def_rw("host", &BootstrapServerOptions::host)
      .def_rw("cluster_token_file", &BootstrapServerOptions::cluster_token_file);
  def_number(type, "port", &BootstrapServerOptions::port);
  def_number(type, "max_rows", &BootstrapServerOptions::max_rows);
  def_number(type, "max_body_bytes", &BootstrapServerOptions::max_body_bytes);
  def_number(type, "max_superseded", &BootstrapServerOptions::max_superseded);
}

}  // namespace

void bind_bootstrap(nb::module_& module, const std::shared_ptr<LiveObjects>& live) {
  bind_server_options(module);
  nb::class_<BoundServer> type(
      module, "BootstrapServer",
      R"(The registry of a fleet, in which decode finds the prefill ranks of a room.

An HTTP service in which ranks register their addresses and public keys under a lease. It has threads of
its own and never sees KV data. Stopped by stop(), by destruction and at the interpreter's exit.)");
  type.def(
          "__init__",
          [live](BoundServer* self, const BootstrapServerOptions* options) {
            new (self) BoundServer(start(options, *live));
          },
          nb::arg("options") = nb::none(),
          "Binds and starts to serve. Raises KvferryError when the address can't be bound.")
      .def_static(
          "start", [live](const BootstrapServerOptions* options) { return start(options, *live); },
          nb::arg("options") = nb::none(), "As BootstrapServer(); C++'s name.")
      .def(
          "address", [](const BoundServer& self) { return self.core->use().address(); },
          "host:port.")
      .def("stop", &BoundServer::stop, "Idempotent; joins its threads.");
  def_with(type, "def __enter__(self) -> BootstrapServer");
}

}  // namespace kvferry::python
