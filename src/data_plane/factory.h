// Makes a transport by its name in Options::transport.
#pragma once

#include <functional>
#include <memory>
#include <string_view>
#include <vector>

#include "data_plane/transport.h"

namespace kvferry::data_plane {

// Names of the transports in this build, most preferred first.
std::vector<std::string_view> transport_names();

// sink outlives the transport. An unknown name fails and lists the known ones.
Result<std::unique_ptr<Transport>> make_transport(std::string_view name,
                                                  const TransportConfig& config,
                                                  CompletionSink& sink);

// Makes the one transport of a manager, for who brings its own instead of one of this build's:
// a bench that measures everything but the bytes. sink outlives the transport.
using TransportMaker =
    std::function<Result<std::unique_ptr<Transport>>(const TransportConfig&, CompletionSink& sink)>;

}  // namespace kvferry::data_plane
