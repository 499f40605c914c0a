// SPDX-License-Identifier: Apache-2.0
#include "window/generator/recipe.h"

#include <algorithm>
#include <cmath>

namespace routepack {
namespace {

constexpr double kColdest = -2.5;        ///< base logits are cut there, in spreads
constexpr double kSharedShare = 0.7;     ///< of a deviation's variance, what the latent factors make
constexpr double kFactorDecay = 0.4;     ///< variance of one factor over that of the factor before
constexpr double kPromptLikeness = 0.6;  ///< correlation of the base logits of prompts and answers
constexpr double kDriftPerStep = 0.008;  ///< sd of the change of the logits from window to window

/// Standard deviations of the factors; their variances add up to 1.
Latent factor_sds() {
  Latent sds{};
  double total = 0.0;
  double variance = 1.0;
  for (double& sd : sds) {
    sd = variance;
    total += variance;
    variance *= kFactorDecay;
  }
  for (double& sd : sds) sd = std::sqrt(sd / total);
  return sds;
}

/// The first layers route more evenly in every recording.
double evenness(std::size_t layer) {
  constexpr double kFirstLayers[] = {0.7, 0.8, 0.9};
  return layer < std::size(kFirstLayers) ? kFirstLayers[layer] : 1.0;
}

}  // namespace

Recipe::Recipe(const Preset& preset, const Domain& domain, const GenerateParams& params)
    : params_(params),
      routing_(domain.routing),
      layers_(static_cast<std::size_t>(preset.moe_layers)),
      experts_(static_cast<std::size_t>(preset.experts)),
      top_k_(preset.top_k),
      answer_base_(layers_ * experts_),
      prompt_base_(layers_ * experts_),
      loadings_(layers_ * kFactors * experts_) {
  draw_popularity(domain.routing);
  for (std::size_t l = 0; l < layers_; ++l) {
    RandomStream(stream(Purpose::Loadings, 0, l))
        .normals(std::span(loadings_).subspan(l * kFactors * experts_, kFactors * experts_));
  }
  drift(params.step);
}

/// The base, the loadings and the drift belong to the policy, not to a step: their streams do not know the step.
StreamName Recipe::stream(Purpose purpose, std::int64_t item, std::size_t layer) const {
  const bool of_policy = purpose <= Purpose::Drift;
  return {.seed = params_.seed,
          .purpose = purpose,
          .step = of_policy ? 0 : params_.step,
          .item = item,
          .layer = static_cast<std::int64_t>(layer)};
}

void Recipe::draw_popularity(const Routing& routing) {
  const auto draw = [&](Purpose purpose, std::vector<double>& base) {
    for (std::size_t l = 0; l < layers_; ++l) {
      RandomStream random(stream(purpose, 0, l));
      const double spread = routing.popularity_sd * (0.7 + 0.6 * random.uniform()) * evenness(l);
      for (double& logit : std::span(base).subspan(l * experts_, experts_)) {
        logit = spread * std::clamp(random.normal(), kColdest, routing.hottest);
      }
    }
  };
  draw(Purpose::Popularity, answer_base_);
  draw(Purpose::PromptPopularity, prompt_base_);
  const double own = std::sqrt(1.0 - kPromptLikeness * kPromptLikeness);
  for (std::size_t at = 0; at < prompt_base_.size(); ++at) {
    prompt_base_[at] = kPromptLikeness * answer_base_[at] + own * prompt_base_[at];
  }
}

Latent Recipe::latent(Purpose purpose, std::int64_t item) const {
  Latent z{};
  RandomStream(stream(purpose, item)).normals(z);
  return z;
}

double Recipe::length_score(Purpose purpose, std::int64_t item) const {
  return RandomStream(stream(purpose, item)).normal();
}

/// Length follows topic: the first three factors correlate with the Hermite polynomials of the length score, which have
/// mean 0, variance 1 and no correlation with each other. So long texts differ from short ones (the first), middling
/// ones from both (the second), and neighbouring length classes from each other (the third).
void Recipe::follow_length(Latent& z, double score) const {
  const double square = score * score;
  const std::array<double, 3> hermite = {score, (square - 1.0) / std::sqrt(2.0),
                                         score * (square - 3.0) / std::sqrt(6.0)};
  for (std::size_t k = 0; k < hermite.size(); ++k) {
    const double correlation = routing_.length_topic[k];
    z[k] = correlation * hermite[k] + std::sqrt(1.0 - correlation * correlation) * z[k];
  }
}

/// result = onto + sd · (√0.7 Σ_k z_k U[k, l, e] + √0.3 · noise)
void Recipe::add_deviation(const Latent& latent, double sd, std::size_t layer, RandomStream noise_stream,
                           std::span<double> noise, std::span<const double> onto, std::span<double> result) const {
  const double shared = sd * std::sqrt(kSharedShare);
  const double own = sd * std::sqrt(1.0 - kSharedShare);
  static const Latent kSds = factor_sds();
  noise_stream.normals(noise);
  for (std::size_t e = 0; e < experts_; ++e) result[e] = onto[e] + own * noise[e];
  for (std::size_t k = 0; k < kFactors; ++k) {
    const double weight = shared * kSds[k] * latent[k];
    const double* loading = loadings_.data() + (layer * kFactors + k) * experts_;
    for (std::size_t e = 0; e < experts_; ++e) result[e] += weight * loading[e];
  }
}

/// A straight line through logit space, the same for all steps.
void Recipe::drift(std::int64_t step) {
  if (step == 0) return;
  // Every factor at one spread, so that a step is as long as it says.
  Latent direction = latent(Purpose::Drift, 0);
  for (double& z : direction) z = z < 0.0 ? -1.0 : 1.0;
  const double sd = kDriftPerStep * static_cast<double>(step);
  std::vector<double> noise(experts_);
  for (std::size_t l = 0; l < layers_; ++l) {
    for (auto* base : {&answer_base_, &prompt_base_}) {
      const auto logits = std::span(*base).subspan(l * experts_, experts_);
      add_deviation(direction, sd, l, RandomStream(stream(Purpose::Drift, 1, l)), noise, logits, logits);
    }
  }
}

GroupLengths Recipe::lengths(std::int64_t group) const {
  LengthScores scores;
  scores.group = length_score(Purpose::GroupLength, group);
  RandomStream prompt(stream(Purpose::PromptLength, group));
  scores.prompt = prompt.normal();
  scores.within_kind = prompt.normal();
  for (std::int64_t r = 0; r < params_.rollouts; ++r) {
    scores.rollouts.push_back(length_score(Purpose::RolloutLength, group * params_.rollouts + r));
  }
  GroupLengths lengths = draw_lengths(params_.lengths, scores);
  if (params_.answers_only) lengths.prompt = 0;
  return lengths;
}

Recipe::Scratch::Scratch(const Recipe& recipe)
    : table(recipe.experts_),
      counter(recipe.experts_),
      noise(recipe.experts_),
      group_deviation(recipe.experts_),
      logits(recipe.experts_),
      prompt(recipe.experts_),
      answer(recipe.experts_) {}

void Recipe::count(std::int64_t group, const GroupLengths& lengths, Scratch& s, std::span<std::uint16_t> counts) const {
  Latent topic = latent(Purpose::Topic, group);
  follow_length(topic, length_score(Purpose::GroupLength, group));
  std::vector<Latent> variations;
  for (std::int64_t r = 0; r < params_.rollouts; ++r) {
    const std::int64_t sample = group * params_.rollouts + r;
    follow_length(variations.emplace_back(latent(Purpose::Variation, sample)),
                  length_score(Purpose::RolloutLength, sample));
  }
  const auto draw = [&](Purpose purpose, std::int64_t item, std::size_t layer, std::int64_t tokens,
                        std::vector<std::uint32_t>& drawn) {
    s.table.build(s.logits);
    RandomStream random(stream(purpose, item, layer));
    s.counter.add(s.table, top_k_, tokens, random, drawn);
  };
  const std::vector<double> nothing(experts_, 0.0);
  for (std::size_t l = 0; l < layers_; ++l) {
    add_deviation(topic, routing_.group_sd, l, RandomStream(stream(Purpose::GroupDeviation, group, l)), s.noise,
                  nothing, s.group_deviation);
    std::ranges::fill(s.prompt, 0U);
    if (lengths.prompt > 0) {
      const auto base = layer_of(prompt_base_, l);
      for (std::size_t e = 0; e < experts_; ++e) s.logits[e] = base[e] + s.group_deviation[e];
      draw(Purpose::PromptTokens, group, l, lengths.prompt, s.prompt);
    }
    const auto base = layer_of(answer_base_, l);
    for (std::size_t e = 0; e < experts_; ++e) s.group_deviation[e] += base[e];
    for (std::size_t r = 0; r < variations.size(); ++r) {
      const std::int64_t sample = group * params_.rollouts + static_cast<std::int64_t>(r);
      add_deviation(variations[r], routing_.rollout_sd, l, RandomStream(stream(Purpose::RolloutDeviation, sample, l)),
                    s.noise, s.group_deviation, s.logits);
      s.answer = s.prompt;
      draw(Purpose::AnswerTokens, sample, l, lengths.answers[r], s.answer);
      const auto out = counts.subspan((r * layers_ + l) * experts_, experts_);
      for (std::size_t e = 0; e < experts_; ++e) out[e] = static_cast<std::uint16_t>(s.answer[e]);
    }
  }
}

}  // namespace routepack
