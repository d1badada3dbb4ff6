#include "data_plane/tcp/tcp_door.h"

#include <netdb.h>
#include <sys/socket.h>

#include "data_plane/tcp/tcp_target_lane.h"

namespace kvferry::data_plane::tcp {
namespace {

std::string peer_name(const sockaddr_storage& address, socklen_t length) {
  char host[NI_MAXHOST] = {};
  char port[NI_MAXSERV] = {};
  if (::getnameinfo(reinterpret_cast<const sockaddr*>(&address), length, host, sizeof host, port,
                    sizeof port, NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return {};
  }
  return std::string(host) + ":" + port;
}

}  // namespace

Result<std::unique_ptr<LaneDoor>> TcpDoor::open(const TransportConfig& config) {
  auto listener = listen_on(config.host, config.port);
  if (!listener) return tl::unexpected(listener.error());
  if (!config.advertise_host.empty()) {
    auto host = numeric_host(config.advertise_host);
    if (!host) return tl::unexpected(host.error());
    listener->host = std::move(*host);
  } else if (listener->is_wildcard) {
    return fail(FailureCode::kInvalidArgument,
                "data host " + listener->host +
                    " means every interface; give the address that peers shall connect to");
  }
  if (config.advertise_port != 0) listener->port = config.advertise_port;
  return std::unique_ptr<LaneDoor>(new TcpDoor(std::move(*listener), config.lane_timeout_ms));
}

LaneDoor::Arrival TcpDoor::accept() {
  sockaddr_storage address{};
  socklen_t length = sizeof address;
  Arrival arrival;
  arrival.fd = Fd(::accept4(listener_.fd.get(), reinterpret_cast<sockaddr*>(&address), &length,
                            SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!arrival.fd.is_open()) return arrival;
  set_lane_options(arrival.fd.get(), lane_timeout_ms_);
  arrival.peer = peer_name(address, length);
  return arrival;
}

std::unique_ptr<TargetLane> TcpDoor::make_lane(TargetLaneParts&& parts) const {
  return std::make_unique<TcpTargetLane>(std::move(parts));
}

void TcpDoor::describe(TargetBlob& blob) const {
  blob.host = listener_.host;
  blob.port = listener_.port;
}

}  // namespace kvferry::data_plane::tcp
