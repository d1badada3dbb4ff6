// Transport over TCP: the prefill side connects lanes to the decode side's listener and sends
// frames; the decode side receives them straight into its pages. A process has one of the two
// roles.
//
// Threads: a source has one loop; a target has receive_threads loops and the gate's fence thread.
#pragma once

#include <memory>

#include "data_plane/transport.h"

namespace kvferry::data_plane::tcp {

Result<std::unique_ptr<Transport>> make_tcp_transport(const TransportConfig& config,
                                                      CompletionSink& sink);

}  // namespace kvferry::data_plane::tcp
