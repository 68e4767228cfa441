// Guesses one after the other without leaving this side: a program is run again on what it said.

#include <math.h>
#include <string.h>

#include <vector>

#include "../cutaway.h"
#include "guard.h"

namespace {

constexpr double kOne = 17179869184.0;  // 2^34: what a total of cw_drawn counts in

// A sequence that goes on.
struct Line {
  int64_t sequence;
  int64_t state;     // row of its latest state among those made
  int64_t token_id;  // its latest guess
  int64_t position;  // of that, in a rotation table
  int64_t context;   // tokens in its pages, that one included
  double odds;       // the product of its guesses' chances
};

bool is_sound(const cw_step& step, const cw_chain& c) {
  if (!c.drawn || !c.token_ids || !c.is_last || !c.made || !c.given || !c.most) return false;
  if (!c.guesses || !c.chances || !c.counts) return false;
  if (c.num_entries < 1 || c.width < 1 || c.page_size < 1) return false;
  if (step.num_sequences < 1 || step.num_logit_rows != step.num_sequences) return false;
  for (int64_t b = 0; b < step.num_sequences; b++)
    if (c.most[b] < 1 || c.most[b] > c.room) return false;
  return true;
}

// Takes what the latest run drew for the lines, and leaves those that go on.
void take(const cw_chain& c, std::vector<Line>& lines) {
  size_t going = 0;
  for (size_t i = 0; i < lines.size(); i++) {
    Line line = lines[i];
    const cw_drawn& drawn = c.drawn[i];
    double chance = kOne / drawn.total;
    bool is_good = isfinite(drawn.peak) && isfinite(chance) && drawn.token_id >= 0 &&
                   drawn.token_id < c.num_entries;  // a bad row guesses nothing
    line.odds *= chance;
    if (!is_good || line.odds < c.least_kept) continue;
    int64_t count = c.counts[line.sequence]++;
    line.token_id = c.token_ids[drawn.token_id];
    c.guesses[line.sequence * c.room + count] = line.token_id;
    c.chances[line.sequence * c.room + count] = chance;
    bool is_last = c.is_last[drawn.token_id] || count + 1 == c.most[line.sequence];
    if (is_last || line.odds < c.least_followed) continue;
    line.position++, line.context++;
    lines[going++] = line;
  }
  lines.resize(going);
}

// A step of one token for each line, as it is now.
struct Following {
  std::vector<int64_t> numbers, pages;
  std::vector<float> states;
  cw_step step;

  void lay_out(const cw_step& first, const cw_chain& c, const std::vector<Line>& lines) {
    size_t count = lines.size();
    const cw_group& group = first.groups[0];
    size_t width = static_cast<size_t>(group.pages_per_sequence);
    size_t row = static_cast<size_t>(c.width) * sizeof(float);
    numbers.resize(6 * count + 1);
    pages.resize(count * width);
    states.resize(count * static_cast<size_t>(c.width));
    int64_t *token_ids = numbers.data(), *positions = token_ids + count,
            *contexts = positions + count, *slots = contexts + count, *rows = slots + count,
            *starts = rows + count;
    for (size_t i = 0; i < count; i++) {
      const Line& line = lines[i];
      int64_t* own = pages.data() + i * width;
      memcpy(own, group.page_table + line.sequence * group.pages_per_sequence,
             width * sizeof(int64_t));
      int64_t last = line.context - 1;
      bool has_page = last / c.page_size < group.pages_per_sequence;  // else the run refuses it
      token_ids[i] = line.token_id;
      positions[i] = line.position;
      contexts[i] = line.context;
      slots[i] = has_page ? own[last / c.page_size] * c.page_size + last % c.page_size : -1;
      rows[i] = starts[i] = static_cast<int64_t>(i);
      memcpy(states.data() + i * static_cast<size_t>(c.width), c.made + line.state * c.width, row);
    }
    starts[count] = static_cast<int64_t>(count);
    memcpy(c.given, states.data(), count * row);  // by way of a copy: made and given may be one
    int64_t total = static_cast<int64_t>(count);
    memset(&step, 0, sizeof step);
    step.num_tokens = step.num_sequences = step.num_logit_rows = total;
    step.token_ids = token_ids;
    step.positions = positions;
    step.query_starts = starts;
    step.context_lengths = contexts;
    step.logit_rows = rows;
    step.groups[0] = {pages.data(), group.pages_per_sequence, slots};
  }
};

cw_status follow(cw_program* program, const cw_step& step, const cw_chain& c) {
  std::vector<Line> lines;
  for (int64_t b = 0; b < step.num_sequences; b++) {
    int64_t row = step.logit_rows[b];
    c.counts[b] = 0;
    lines.push_back({b, row, 0, step.positions[row], step.context_lengths[b], 1.0});
  }
  take(c, lines);
  Following next;
  while (!lines.empty()) {
    next.lay_out(step, c, lines);
    int64_t status = cw_program_run(program, &next.step);
    if (status != CW_OK) return static_cast<cw_status>(status);
    for (size_t i = 0; i < lines.size(); i++) lines[i].state = static_cast<int64_t>(i);
    take(c, lines);
  }
  return CW_OK;
}

}  // namespace

extern "C" int64_t cw_program_chain(cw_program* program, const cw_step* step,
                                    const cw_chain* chain) {
  if (!program || !step || !chain || !is_sound(*step, *chain)) return CW_BAD_ARGUMENT;
  int64_t status = cw_program_run(program, step);  // which checks the step
  if (status != CW_OK) return status;
  return cutaway::guarded([&] { return follow(program, *step, *chain); });
}
