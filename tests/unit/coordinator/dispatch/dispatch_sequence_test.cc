#include <gtest/gtest.h>

#include "coordinator/dispatch/sequence_state.h"
#include "tests/unit/coordinator/dispatch/dispatch_testing.h"

namespace sluice {
namespace {

class SequenceStateTest : public testing::Test {
 protected:
  SequenceState Make(Request request) {
    return SequenceState(std::move(request), &eos_, &tokenizer_,
                         absl::ZeroDuration());
  }

  // Feeds the tokens of `model` until the sequence ends.
  static FinishedRequest Run(SequenceState sequence, const Model& model) {
    SampledToken token;
    do {
      token.token = model(sequence.request().sampling.seed, sequence.tokens());
      token.logprob = -static_cast<float>(token.token);
    } while (!sequence.Append(token));
    return sequence.TakeFinished();
  }

  void ExpectAsSimulated(const Request& request, const Model& model) {
    const Expected expected = Simulate(request, model);
    const FinishedRequest finished = Run(Make(request), model);
    EXPECT_TRUE(finished.generation.status.ok());
    EXPECT_EQ(finished.generation.tokens, expected.tokens);
    EXPECT_EQ(finished.generation.generated, expected.generated);
    EXPECT_EQ(finished.generation.finish_reason, expected.finish_reason);
    const std::string text =
        finished.generation.decode
            ? tokenizer_.Decode(finished.generation.tokens, true)
            : finished.generation.text;
    EXPECT_EQ(text, expected.text);
  }

  FakeTokenizer tokenizer_;
  absl::flat_hash_set<int32_t> eos_{FakeTokenizer::kAsciiEos};
};

TEST_F(SequenceStateTest, EndsAtEndOfSequence) {
  const FinishedRequest f =
      Run(Make(MakeRequest(1, 0, "Q", 10)), ScriptModel(1, "yes"));
  EXPECT_EQ(f.generation.finish_reason, FinishReason::kStop);
  EXPECT_EQ(f.generation.tokens, (std::vector<int32_t>{'y', 'e', 's'}));
  EXPECT_EQ(f.generation.generated, 4);
  EXPECT_TRUE(f.generation.decode);
}

TEST_F(SequenceStateTest, EndsAtMaxTokens) {
  const FinishedRequest f =
      Run(Make(MakeRequest(1, 0, "Q", 2)), ScriptModel(1, "yes"));
  EXPECT_EQ(f.generation.finish_reason, FinishReason::kLength);
  EXPECT_EQ(f.generation.tokens, (std::vector<int32_t>{'y', 'e'}));
}

TEST_F(SequenceStateTest, EndOfSequenceAsLastTokenIsAStop) {
  ExpectAsSimulated(MakeRequest(1, 0, "Q", 4), ScriptModel(1, "yes"));
}

TEST_F(SequenceStateTest, IgnoresEndOfSequenceIfAsked) {
  Request request = MakeRequest(1, 0, "Q", 6);
  request.ignore_eos = true;
  ExpectAsSimulated(request, ScriptModel(1, "yes"));
}

TEST_F(SequenceStateTest, EndsAtAStopToken) {
  Request request = MakeRequest(1, 0, "Q", 20);
  request.stop_tokens = {'y', 'c'};
  request.ignore_eos = true;
  request.sampling.logprobs = 0;
  for (const bool watched : {false, true}) {
    if (watched) request.stop = {"bcd"};
    const FinishedRequest f = Run(Make(request), ScriptModel(1, "abcd"));
    EXPECT_EQ(f.generation.finish_reason, FinishReason::kStop);
    EXPECT_EQ(f.generation.tokens, (std::vector<int32_t>{'a', 'b'}));
    EXPECT_EQ(f.generation.generated, 3);
    EXPECT_EQ(f.generation.logprobs.size(), 3);
    EXPECT_EQ(f.generation.text, watched ? "ab" : "");
  }
}

TEST_F(SequenceStateTest, CutsAtAStopStringAcrossTokens) {
  Request request = MakeRequest(1, 0, "Q", 20);
  request.stop = {"END", "zzz"};
  const FinishedRequest f = Run(Make(request), ScriptModel(1, "abEENDcd"));
  EXPECT_EQ(f.generation.text, "abE");
  EXPECT_EQ(f.generation.finish_reason, FinishReason::kStop);
  EXPECT_FALSE(f.generation.decode);
  ExpectAsSimulated(request, ScriptModel(1, "abEENDcd"));
}

TEST_F(SequenceStateTest, GivesOutHeldTextWhenItEndsOtherwise) {
  Request request = MakeRequest(1, 0, "Q", 4);
  request.stop = {"END"};
  ExpectAsSimulated(request, ScriptModel(1, "abEN"));  // max_tokens
  ExpectAsSimulated(request, ScriptModel(1, "aEN"));   // end of sequence
  request.max_tokens = 5;
  ExpectAsSimulated(request, ScriptModel(1, "abEND"));  // both at once
}

TEST_F(SequenceStateTest, KeepsLogprobsOfTheTokens) {
  Request request = MakeRequest(1, 0, "Q", 10);
  request.sampling.logprobs = 0;
  const FinishedRequest f = Run(Make(request), ScriptModel(1, "ab"));
  ASSERT_EQ(f.generation.logprobs.size(), 3);
  EXPECT_EQ(f.generation.logprobs[1].token, 'b');
  EXPECT_EQ(f.generation.logprobs[1].logprob, -98);
  EXPECT_EQ(f.generation.logprobs[2].token, FakeTokenizer::kAsciiEos);
}

// Usage counts `generated`, and readers expect as many entries.
TEST_F(SequenceStateTest, HasALogprobForEachGeneratedTokenHoweverItEnds) {
  const auto expect = [&](Request request, const std::string& script,
                          FinishReason reason, int32_t generated) {
    request.sampling.logprobs = 2;
    const FinishedRequest f = Run(Make(request), ScriptModel(1, script));
    EXPECT_EQ(f.generation.finish_reason, reason) << script;
    EXPECT_EQ(f.generation.generated, generated) << script;
    EXPECT_EQ(f.generation.logprobs.size(), generated) << script;
  };
  const Request ten = MakeRequest(1, 0, "Q", 10);
  expect(ten, "ab", FinishReason::kStop, 3);
  expect(ten, "", FinishReason::kStop, 1);
  expect(MakeRequest(1, 0, "Q", 1), "", FinishReason::kStop, 1);
  expect(MakeRequest(1, 0, "Q", 2), "abc", FinishReason::kLength, 2);
  Request ignoring = MakeRequest(1, 0, "Q", 4);
  ignoring.ignore_eos = true;
  expect(ignoring, "ab", FinishReason::kLength, 4);
  Request stopping = ten;
  stopping.stop = {"END"};
  expect(stopping, "aENDb", FinishReason::kStop, 4);
  expect(stopping, "aEN", FinishReason::kStop, 4);
}

TEST_F(SequenceStateTest, FailsOnLogitsThatAreNotNumbers) {
  const FinishedRequest f =
      Run(Make(MakeRequest(1, 0, "Q", 10)), ScriptModel(1, "ab\xff"));
  EXPECT_EQ(f.generation.status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(f.generation.tokens, (std::vector<int32_t>{'a', 'b'}));
  EXPECT_FALSE(f.generation.decode);
}

TEST_F(SequenceStateTest, IsAdmittedWithItsOriginalPrompt) {
  SequenceState sequence = Make(MakeRequest(1, 0, "Quo", 10));
  SampledToken token;
  token.token = 'x';
  ASSERT_FALSE(sequence.Append(token));
  const SequenceAdmission admission = sequence.Admission(SequenceId(7));
  EXPECT_EQ(admission.sequence, SequenceId(7));
  EXPECT_EQ(admission.prompt_tokens, 3);
  EXPECT_EQ(admission.max_positions, 13);
  EXPECT_EQ(sequence.known_tokens(), 4);
}

// The begin of an answer as an earlier process leaves it.
Request Resumed(Request request, SequenceState* before) {
  NewTokens known = before->TakeNewTokens();
  EXPECT_EQ(known.begin, 0);
  EXPECT_FALSE(before->has_new_tokens());
  request.known = std::move(known.answer);
  return request;
}

TEST_F(SequenceStateTest, GoesOnFromAnyTokenAsIfNothingHadHappened) {
  const Model model = ScriptModel(1, "abENDx");
  for (const bool stops : {false, true}) {
    Request request = MakeRequest(1, 0, "Q", 6);
    request.sampling.logprobs = 0;
    if (stops) request.stop = {"zz", "END"};
    const FinishedRequest whole = Run(Make(request), model);
    for (int known = 0; known < (stops ? 5 : 6); ++known) {
      SequenceState before = Make(request);
      SampledToken token;
      for (int i = 0; i < known; ++i) {
        token.token = model(0, before.tokens());
        token.logprob = -static_cast<float>(token.token);
        ASSERT_FALSE(before.Append(token));
      }
      SequenceState after = Make(Resumed(request, &before));
      EXPECT_FALSE(after.has_new_tokens());
      EXPECT_EQ(after.known_tokens(), 1 + known);
      const FinishedRequest f = Run(std::move(after), model);
      EXPECT_EQ(f.generation.tokens, whole.generation.tokens);
      EXPECT_EQ(f.generation.text, whole.generation.text);
      EXPECT_EQ(f.generation.generated, whole.generation.generated);
      EXPECT_EQ(f.generation.finish_reason, whole.generation.finish_reason);
      ASSERT_EQ(f.generation.logprobs.size(), whole.generation.logprobs.size());
      for (size_t i = 0; i < f.generation.logprobs.size(); ++i) {
        EXPECT_EQ(f.generation.logprobs[i].token,
                  whole.generation.logprobs[i].token);
        EXPECT_EQ(f.generation.logprobs[i].logprob,
                  whole.generation.logprobs[i].logprob);
      }
    }
  }
}

TEST_F(SequenceStateTest, BeginsAnewFromTokensThatWouldHaveEndedIt) {
  Request request = MakeRequest(1, 0, "Q", 4);
  request.stop = {"b"};
  for (const std::vector<int32_t>& known : {std::vector<int32_t>{'a', 'b'},
                                            {FakeTokenizer::kAsciiEos, 'a'},
                                            {'a', 'a', 'a', 'a'},
                                            {'a', -1}}) {
    request.known.tokens = known;
    SequenceState sequence = Make(request);
    EXPECT_EQ(sequence.known_tokens(), 1);
    SampledToken token;
    token.token = 'c';
    ASSERT_FALSE(sequence.Append(token));
    const NewTokens tokens = sequence.TakeNewTokens();
    EXPECT_EQ(tokens.begin, 0);  // replaces what was stored
    EXPECT_EQ(tokens.answer.tokens, std::vector<int32_t>{'c'});
  }
}

TEST_F(SequenceStateTest, IsGivenBackWithTheTokensThatItCameWith) {
  Request request = MakeRequest(1, 0, "Q", 9);
  request.sampling.logprobs = 0;
  request.known.tokens = {'a', 'b'};
  request.known.logprobs.resize(2);
  request.known.logprobs[1].logprob = -3;
  const Request back = Make(request).TakeRequest();
  EXPECT_EQ(back.prompt, request.prompt);
  EXPECT_EQ(back.known.tokens, request.known.tokens);
  ASSERT_EQ(back.known.logprobs.size(), 2u);
  EXPECT_EQ(back.known.logprobs[1].logprob, -3);
}

}  // namespace
}  // namespace sluice
