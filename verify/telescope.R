# Rscript telescope.R TABLE.csv COMPONENTS: the sampler of telescope (Fruehwirth-Schnatter et al.,
# 2021) for latent classes, under silomix's prior: Dirichlet(0.5) weights and probabilities, and as
# many components as silomix has, with probability one.
suppressMessages(library(telescope))
source(file.path(dirname(sub("--file=", "", grep("--file=", commandArgs(), value = TRUE))),
                 "posterior.R"))
DRAWS <- 1000
codes <- codes_of(words[1])
sizes <- apply(codes, 2, max)
number <- list(log_pK = function(K) ifelse(K == components, 0, -Inf))
weights <- priorOnE0_spec("e0const", 0.5)
weights$param$log_p_e0 <- weights$log_p_e0  # where sampleLCA of 0.2-0 looks for it
chains <- lapply(seq_len(CHAINS), function(seed) {
  set.seed(seed)
  labels <- sample(components, nrow(codes), replace = TRUE)
  profiles <- matrix(unlist(lapply(sizes, function(size) rep(1 / size, size))), components,
                     sum(sizes), byrow = TRUE)
  fit <- sampleLCA(codes, labels, profiles, rep(1 / components, components), rep(0.5, sum(sizes)),
                   DRAWS, DRAWS %/% 4, 1, components, "MixStatic", number, weights)
  first <- cumsum(c(0, sizes[-length(sizes)]))
  cells <- sweep(codes, 2, first, "+")
  values <- invariants(fit$Eta, function(draw) {
    logs <- t(log(fit$Pi[draw, , ]))
    apply(array(logs[t(cells), ], c(ncol(codes), nrow(codes), components)), c(2, 3), sum)
  })
  cbind(values, occupied = rowSums(fit$Nk > 0, na.rm = TRUE))
})
report(packageVersion("telescope"), chains)
