#include "cli/demo_prompts.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace kvferry::cli {
namespace {

struct Passage {
  std::string_view text;
  std::string_view question;
};

constexpr std::array<Passage, 20> kPassages = {{
    {"A lighthouse keeper on a small island wrote down the weather three times a day for thirty "
     "years. "
     "He noted the wind, the height of the waves and the colour of the sky. When engineers later "
     "planned "
     "a harbour nearby, his notebooks told them more about winter storms than any of their "
     "instruments.",
     "Why were the notebooks useful to the engineers?"},
    {"Bread rises because yeast eats sugar in the dough and gives off gas. The gas is caught in a "
     "net of "
     "gluten, which forms when flour and water are worked together. If the dough rests in a cool "
     "place "
     "overnight, the yeast works slowly and the bread has more flavour the next morning.",
     "What holds the gas inside the dough?"},
    {"The first bicycles had no pedals. Riders sat on a wooden beam between two wheels and pushed "
     "themselves along with their feet. Pedals came decades later, then chains, and at last tyres "
     "filled "
     "with air, which made rough roads bearable and turned a toy into a way to get to work.",
     "Which change made rough roads bearable?"},
    {"Honeybees tell each other where flowers are by dancing. A bee that has found a rich meadow "
     "walks in "
     "a figure of eight on the comb. The angle of the dance shows the direction, measured from the "
     "sun, "
     "and the length of the middle run shows how far the others have to fly.",
     "How does a bee show the distance to a meadow?"},
    {"A river carries stones from the mountains to the plain. On the way the stones knock against "
     "each "
     "other and lose their edges. That is why pebbles near the spring are sharp and pebbles near "
     "the sea "
     "are round, and why a handful of gravel can tell how far it has travelled.",
     "Why are pebbles near the sea round?"},
    {"In a small town the library lends more than books. People can borrow a drill, a sewing "
     "machine, a "
     "telescope or a cake tin in the shape of a train. Each thing is used by dozens of families "
     "instead "
     "of standing in one cupboard, and the librarians know who can explain how it works.",
     "What can people borrow from this library?"},
    {"Before clocks were common, sailors measured time with sandglasses. A boy turned the glass "
     "every "
     "half hour and struck a bell, once for the first turn, twice for the second, and so on up to "
     "eight. "
     "Crews changed places after eight bells, so everyone on board knew the hour by listening.",
     "What happened on board after eight bells?"},
    {"Mountains make their own weather. Moist air that meets a slope has to climb, and as it "
     "climbs it "
     "cools and drops its water as rain or snow. On the far side the air sinks again, dry and "
     "warm, which "
     "is why one valley can be green while the next one is almost a desert.",
     "Why can two neighbouring valleys look so different?"},
    {"A violin maker taps the thin plates of spruce with a knuckle and listens. Wood that sounds "
     "dull is "
     "shaved a little more, here and there, until the tone is clear. No two pieces of wood are "
     "alike, so "
     "measurements help at the start, but at the end only the ear decides.",
     "How does the maker decide that a plate is finished?"},
    {"Potatoes came to Europe as a curiosity. People planted them for their flowers and did not "
     "trust the "
     "roots. A king who wanted his farmers to grow them put guards around his own field by day and "
     "sent "
     "them home at night. Soon the plants were stolen, and then they were everywhere.",
     "Why did the king send the guards home at night?"},
    {"The moon pulls at the sea, and the water on the near side rises a little. On the far side it "
     "rises "
     "as well, because there the pull is weaker than on the middle of the earth. As the earth "
     "turns "
     "beneath these two hills of water, most coasts see high tide twice a day.",
     "Why do most coasts have two high tides a day?"},
    {"An old bridge in the valley is inspected every spring. Two people hang on ropes below the "
     "arches "
     "and strike each stone with a small hammer. A sound stone rings and a cracked one answers "
     "with a "
     "dull thud. In ninety years the bridge has had eleven stones replaced, and it carries buses.",
     "How do the inspectors find a cracked stone?"},
    {"Snow is white although ice is clear. A heap of snow is made of countless small crystals, and "
     "light "
     "that enters is turned aside at every surface until it comes out again in all directions. No "
     "colour "
     "is favoured, so the eye sees them all together, and together they are white.",
     "Why does snow look white?"},
    {"A gardener kept two beds of tomatoes. One she watered a little every day, the other "
     "thoroughly once "
     "a week. In the hot summer the plants of the first bed wilted, since their roots had stayed "
     "near the "
     "surface, while those of the second had grown deep and hardly noticed the drought.",
     "Which bed did better in the hot summer, and why?"},
    {"Paper was once made from rags. Collectors went from house to house and bought worn linen and "
     "cotton, which mills beat into pulp, spread on wire frames and dried. When newspapers became "
     "popular there were not enough rags, and inventors tried straw, nettles and finally wood.",
     "Why did inventors look for something other than rags?"},
    {"Cats land on their feet because their spines are very flexible. A falling cat first turns "
     "its head "
     "towards the ground, then twists the front half of its body and lets the back half follow. It "
     "needs "
     "no push from outside, only a moment of time and a good sense of balance.",
     "What does a falling cat do first?"},
    {"A weather balloon is only half full when it leaves the ground. As it rises, the air around "
     "it gets "
     "thinner and the gas inside expands, until the skin is stretched as wide as a house and "
     "bursts. A "
     "small parachute then brings the instruments back to a field, a roof or a lake.",
     "Why does the balloon expand as it rises?"},
    {"In the old observatory a student counted sunspots on every clear day. Each count alone meant "
     "little. "
     "After eleven years the numbers had risen and fallen once, after twenty-two years twice, and "
     "the "
     "pattern in the long row of figures was plain to anyone who looked at it.",
     "What did the long row of figures show?"},
    {"A chess club meets in the back room of a bakery. Beginners play against old masters, and "
     "whoever "
     "loses explains the mistake to the whole table. The baker says that he has learnt more from "
     "the "
     "lost games than from the won ones, and that the same is true of bread.",
     "What does the loser of a game have to do?"},
    {"Whales sing in the dark water where eyes are of little use. Their low notes travel for "
     "hundreds of "
     "miles, and each group has a song of its own that changes slowly from year to year. Young "
     "whales "
     "learn it by listening, and sometimes a whole ocean takes up a new tune.",
     "How do young whales learn the song of their group?"},
}};

struct Shape {
  std::size_t passages;  // how many are joined
  std::size_t first;     // the one that is asked about
};

// Lengths are mixed, so that short prompts run beside long ones. A prompt is either well inside one
// prefill chunk or reaches well into its second.
constexpr std::array<Shape, kDemoPrompts> kShapes = {{
    {1, 0},   {2, 3},  {1, 5},  {4, 8},  {1, 12}, {2, 14}, {6, 16}, {1, 2},
    {2, 6},   {1, 9},  {8, 1},  {1, 13}, {4, 4},  {1, 18}, {2, 10}, {1, 7},
    {12, 11}, {1, 15}, {2, 19}, {6, 17}, {1, 1},  {4, 13}, {2, 8},  {1, 10},
}};

std::string build(const Shape& shape) {
  std::string prompt =
      "Read the following text with care and answer the question about it in one short sentence. "
      "Use only what the text itself says.\n\n";
  // The passage that is asked about comes last but one, so the answer needs KV from the middle.
  const std::size_t asked = shape.passages > 1 ? shape.passages - 2 : 0;
  for (std::size_t i = 0; i < shape.passages; ++i) {
    const std::size_t index = (shape.first + kPassages.size() + i - asked) % kPassages.size();
    prompt += kPassages[index].text;
    prompt += "\n\n";
  }
  prompt += "Question: ";
  prompt += kPassages[shape.first].question;
  return prompt;
}

}  // namespace

std::vector<std::string> demo_prompts(std::size_t count) {
  std::vector<std::string> prompts;
  for (std::size_t i = 0; i < std::min(count, kShapes.size()); ++i) {
    prompts.push_back(build(kShapes[i]));
  }
  return prompts;
}

std::vector<std::string> demo_prompts_to_cancel(std::size_t count) {
  std::vector<std::string> prompts;
  for (std::size_t i = 0; i < count; ++i) {
    prompts.push_back(build({12, (3 * i) % kPassages.size()}));
  }
  return prompts;
}

}  // namespace kvferry::cli
