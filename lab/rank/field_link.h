// The control link as those of the field were without one of its guards (base/runtime_guards.h):
// the product's link, with something around it that behaves as they did. The product's own link has
// no such guard to miss: its sockets have one owner, a lost connection takes its socket along, and
// a full queue is a value.
//
//   kWholeMessages  a dozen threads cut frames into parts, which go as messages of their own; the
//                   receiver joins what comes from one sender. Both ends must run so.
//   kFreshSocket    what was once connected to an endpoint is used for whoever is dialled there: it
//                   looks connected, and takes everything.
//   kFullIsAValue   send() waits until the frame is taken.
//
// A connection that breaks takes no part of a message back: the half that came is continued by what
// the same process says next.
#pragma once

#include <memory>

#include "kvferry/options.h"
#include "net/control_link.h"

namespace kvferry::lab {

// inner itself when none of the three is missing.
std::unique_ptr<net::ControlLink> make_field_link(std::unique_ptr<net::ControlLink> inner);

// The options of a rank with such a link. The field's had no queue beside their socket's: without
// kFullIsAValue next to nothing waits before somebody has to.
Options field_options(Options options);

}  // namespace kvferry::lab
