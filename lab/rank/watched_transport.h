// The transport of a rank of a drill: the product's, with a journal of what the target saw of it
// (slots, fences, landings), a watch over what it does as a source, and with its connections led
// through the rig's relays.
#pragma once

#include <memory>
#include <string_view>

#include "data_plane/transport.h"
#include "lab/rank/journal.h"
#include "lab/rank/routes.h"
#include "lab/rank/write_watch.h"

namespace kvferry::lab {

// name: as in Options::transport. sink and what follows it outlive it.
Result<std::unique_ptr<data_plane::Transport>> make_watched_transport(
    std::string_view name, const data_plane::TransportConfig& config,
    data_plane::CompletionSink& sink, Journal& journal, const Routes& routes, WriteWatch& writes);

}  // namespace kvferry::lab
