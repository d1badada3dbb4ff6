// What of a manager with SGLang's dialect is a decode rank's. Private to node.cc.
#pragma once

#include <memory>

#include "base/layout_shape.h"
#include "data_plane/factory.h"
#include "dialect/sglang/aux_shadow.h"
#include "dialect/sglang/node.h"
#include "dialect/sglang/translator.h"
#include "runtime/prefill_resolver.h"

namespace kvferry::sglang {

struct DecodeParts {
  std::unique_ptr<AuxShadow> shadow;  // outlives the others
  std::unique_ptr<Translator> translator;
  data_plane::TransportMaker make_transport;
  runtime::ResolverWrapper wrap_resolver;
};

// endpoint: of this rank's PULL socket.
Result<DecodeParts> make_decode_parts(const KvArgs& args, const Options& options,
                                      const DialectOptions& dialect, const LayoutShape& layout,
                                      const RankEndpoint& endpoint);

}  // namespace kvferry::sglang
