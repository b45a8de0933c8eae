#' Install the Python package
#'
#' Makes a virtual environment where the other functions then find silomix. Restart R afterwards
#' if Python was in use.
#' @param package What pip installs: a name, a wheel, or the source folder.
#' @param envname The virtual environment.
#' @param python A Python of version 3.11 or newer.
#' @param ... Further arguments of `reticulate::virtualenv_install()`, such as `pip_options`.
#' @export
install_silomix <- function(package = "silomix", envname = "r-silomix", python = NULL, ...) {
  if (!reticulate::virtualenv_exists(envname)) {
    reticulate::virtualenv_create(envname, python = python)
  }
  tryCatch(reticulate::virtualenv_install(envname, package, ...), error = function(reason) {
    pip <- file.path(dirname(reticulate::virtualenv_python(envname)), "pip")
    stop(conditionMessage(reason), "\nIf this pip misses packages that exist, run in a shell: ", pip,
         " install ", paste(package, collapse = " "), call. = FALSE)
  })
}

.onLoad <- function(libname, pkgname) {
  reticulate::use_virtualenv("r-silomix", required = FALSE)
}

#' Cluster the rows of a data frame
#'
#' Clusters are called "0", "1" and so on, the largest first, as in silomix's reports; names
#' follow the number: see `silomix_load()`.
#' @param data A data frame: factors, characters and logicals are categories; numbers with only a few
#'   distinct values, all whole, are levels. `NA` is a missing cell, which is left out. Columns of
#'   any other class are read as text, as from a CSV file: dates are refused unless they are
#'   excluded, and labelled columns of haven need `haven::as_factor()` to keep their labels.
#' @param silo The column that names each row's silo; without it, all rows are one silo.
#' @param ... Any setting of Python's `silomix.fit`, all of which are optional; among them are
#'   \itemize{
#'   \item `id = "patient"`, the column that names each row; it is not clustered.
#'   \item `exclude = c("admitted", "died")`, columns to leave out, or `variables`, those to use.
#'   \item `na_values = c(-9, -8)`, codes for missing cells, or `c(age = 99)`, those of one column;
#'     `list(-9, list(age = 99))` has both.
#'   \item `kinds = c(age = "gaussian", visits = "poisson")`, the kinds of columns, and
#'     `bins = c(age = 4)`, numbers to cut into levels.
#'   \item `missing = "level"`, to make missing cells a level.
#'   \item `frequency = "count"`, the column that says how often each row occurs.
#'   \item `clusters`, if their number is known, or `components`, if you only know a maximum.
#'   \item `seed`, `iterations` and `threads`.
#'   }
#' @return An object with `clusters` and `profiles` (data frames with intervals), `labels` (a factor;
#'   for a table of patterns, one for each repeated row), `trusted`, `verdict`, and `posterior`, the
#'   Python object, which has more: `fit$posterior$report("report.html")`, and frames that
#'   `silomix_frame()` converts.
#' @examples
#' \dontrun{
#' fit <- silomix_fit(carcinoma, clusters = 3, seed = 1)
#' summary(fit)
#' }
#' @export
silomix_fit <- function(data, silo = NULL, ...) {
  settings <- lapply(list(...), as_setting)
  given <- c(list(silomix_table(data), silo = silo), settings)
  make_fit(do.call(python("silomix")$fit, given), silo)
}

#' Read a posterior that was saved with `fit$posterior$save(path)`, or in Python
#'
#' R's own `saveRDS()` and `save()` cannot keep it.
#' @param path The file; or a Python posterior, such as one whose clusters have names,
#'   `fit$posterior$with_names(list("1" = "frail"))`.
#' @param silo The column that names each row's silo in tables to predict.
#' @export
silomix_load <- function(path, silo = NULL) {
  make_fit(if (is.character(path)) python("silomix")$load(path.expand(path)) else path, silo)
}

python <- function(module) {
  tryCatch(reticulate::import(module, convert = FALSE), error = function(reason) {
    stop("Python's ", module, " cannot be imported: run install_silomix(), or name a Python that ",
         "has it with reticulate::use_python()\n", conditionMessage(reason), call. = FALSE)
  })
}

make_fit <- function(posterior, silo) {
  # arrays travel as lists of numbers, which every version of reticulate reads
  judged <- posterior$diagnostics
  names <- to_r(posterior$cluster_names)
  by_cluster <- function(found) {
    frame <- silomix_frame(found)
    frame$cluster <- to_factor(frame$cluster, names)
    frame
  }
  fit <- list(
    posterior = posterior, silo = silo,
    clusters = by_cluster(posterior$cluster_sizes(frame_like = "pandas")),
    profiles = by_cluster(posterior$profiles(frame_like = "pandas")),
    trusted = to_r(judged$trusted), verdict = to_r(judged$verdict),
    text = to_r(posterior$`__repr__`())
  )
  assigned <- to_r(python("builtins")$hasattr(posterior$assignment, "labels"))
  if (assigned) fit$labels <- to_factor(unlist(to_r(posterior$labels$tolist())), names)
  structure(fit, class = "silomix_fit")
}

to_r <- function(object) reticulate::py_to_r(object)

posterior_of <- function(fit) {
  if (reticulate::py_is_null_xptr(fit$posterior)) {
    stop("saveRDS() and save() do not keep the posterior, which is a Python object: save it with ",
         "fit$posterior$save(\"fit.silomix\"), and read it with silomix_load()", call. = FALSE)
  }
  fit$posterior
}

# clusters are numbered from 0
to_factor <- function(numbers, names) factor(names[numbers + 1], levels = names)

#' Turn a Python frame into a data frame
#'
#' What the methods of `fit$posterior` return stays in Python until it is converted.
#' @param x A pandas, polars or Arrow frame in Python.
#' @return A data frame with the same column names; missing cells are `NA`.
#' @examples
#' \dontrun{
#' silomix_frame(fit$posterior$labels_frame(probabilities = TRUE))
#' silomix_frame(fit$posterior$contrast(cluster = 3L))
#' }
#' @export
silomix_frame <- function(x) {
  # newer versions of reticulate may have converted it
  if (is.data.frame(x)) return(x)
  columns <- to_r(python("narwhals")$from_native(x)$to_dict(as_series = FALSE))
  as.data.frame(lapply(columns, function(cells) {
    missing <- lengths(cells) == 0 | is.na(cells)
    # NA in front, since no cells would be no column
    c(NA, unlist(replace(cells, missing, NA)))[-1]
  }), optional = TRUE)
}

#' Compare the clusters in columns that were not clustered
#'
#' Allows for rows whose cluster is uncertain. In Python, the help of `compare_outside` and
#' `regress_membership` explains the columns.
#' @param fit What `silomix_fit()` returned.
#' @param data A data frame with the columns that were clustered and those to compare.
#' @param columns Their names, `c("age", "ward")`, or what to compare in each:
#'   `c(age = "mean", ward = "levels", status = "died")`.
#' @param type "compare": how each cluster differs from the rest; "odds": how the odds of being in
#'   each cluster depend on the columns together.
#' @param ... Further arguments of the Python functions, such as `na_values` or `level`.
#' @return A data frame.
#' @export
silomix_outside <- function(fit, data, columns, type = c("compare", "odds"), ...) {
  given <- c(list(posterior_of(fit), silomix_table(data)), lapply(list(columns, ...), as_setting))
  if (match.arg(type) == "odds") {
    return(silomix_frame(do.call(python("silomix")$regress_membership, given)))
  }
  silomix_frame(do.call(python("silomix")$compare_outside, c(given, silo = fit$silo))$frame())
}

as_setting <- function(value) {
  if (!is.null(names(value))) return(lapply(as.list(value), as_setting))
  whole <- is.numeric(value) && all(is.finite(value) & value == round(value) & abs(value) < 2^31)
  if (whole) value <- as.integer(value)
  if (length(value) > 1) as.list(value) else value
}

#' Turn a data frame into a Python table
#'
#' For methods of `fit$posterior` that take a table: missing cells and factors are preserved.
#' @param data A data frame.
#' @return A pandas frame in Python.
#' @examples
#' \dontrun{
#' silomix_frame(fit$posterior$labels_frame(table = silomix_table(new), silo = "hospital"))
#' }
#' @export
silomix_table <- function(data) {
  if (!is.data.frame(data)) stop("data is of class ", class(data)[1], "; give a data frame")
  if (anyDuplicated(names(data))) {
    stop("two columns are named '", names(data)[anyDuplicated(names(data))], "'; rename one")
  }
  wide <- vapply(data, function(x) length(dim(x)) > 1, logical(1))
  if (any(wide)) stop("column '", names(data)[wide][1], "' is a matrix; split it into columns")
  python("pandas")$DataFrame(reticulate::r_to_py(lapply(data, to_column)))
}

to_column <- function(x) {
  if (is.factor(x)) {
    codes <- ifelse(is.na(x), -1L, as.integer(x) - 1L)
    return(python("pandas")$Categorical$from_codes(as.list(codes), as.list(levels(x))))
  }
  # dates, say, which Python refuses where it uses them
  if (is.object(x) || !is.atomic(x)) x <- as.character(x)
  cells <- as.list(if (is.numeric(x)) as.numeric(x) else x)
  cells[is.na(x)] <- list(NULL)
  # Python's None would make numbers objects
  if (is.numeric(x)) cells[is.na(x)] <- list(NaN)
  cells
}

#' @export
print.silomix_fit <- function(x, ...) {
  cat(x$text, "\n", sep = "")
  invisible(x)
}

#' @export
summary.silomix_fit <- function(object, ...) {
  structure(object[c("clusters", "profiles", "trusted", "verdict")], class = "summary.silomix_fit")
}

#' @export
print.summary.silomix_fit <- function(x, digits = 2, ...) {
  shown <- c("mean", "lower", "upper")
  cat("Shares of the rows (", x$clusters$interval[1], "):\n", sep = "")
  print(cbind(x$clusters["cluster"], round(x$clusters[shown], digits)), row.names = FALSE)
  cat("\nProfiles, posterior means:\n")
  print(round(wide(x$profiles), digits))
  cat("\n", x$verdict, "\n", sep = "")
  invisible(x)
}

# (variable = level, cluster), posterior means
wide <- function(profiles) {
  # probabilities of levels have the sum 1; "age mean" is no level
  sums <- ave(profiles$mean, profiles$variable, profiles$cluster, FUN = sum)
  is_number <- ave(abs(sums - 1), profiles$variable, FUN = max) > 1e-4
  line <- paste0(profiles$variable, ifelse(is_number, " ", " = "), profiles$level_name)
  line <- factor(line, levels = unique(line))
  tapply(profiles$mean, list(line, profiles$cluster), mean)
}

#' Draw the clusters
#' @param x What `silomix_fit()` returned.
#' @param type "profiles": a heat map of posterior means: probabilities from 0 to 1, and the means of
#'   numbers from the lowest to the highest, both given after the name; "sizes": shares
#'   of the rows with their intervals. Long names are cut to what the device has room for.
#' @param ... Further arguments of `graphics::image()` or `graphics::plot()`.
#' @export
plot.silomix_fit <- function(x, type = c("profiles", "sizes"), ...) {
  if (match.arg(type) == "sizes") {
    at <- x$clusters
    place <- seq_len(nrow(at))
    names <- shorten(as.character(at$cluster), room(2, 5))
    old <- graphics::par(mar = c(5 + below(names), 4, 4, 2) + .1)
    on.exit(graphics::par(old))
    graphics::plot(place, at$mean, ylim = c(0, max(at$upper)), xaxt = "n", pch = 19,
                   xlab = "", ylab = "share of the rows", ...)
    graphics::segments(place, at$lower, place, at$upper)
    cluster_axis(names)
    return(invisible(x))
  }
  family <- posterior_of(x)$family
  share <- unlist(to_r(family$shares()$tolist()))
  # of numbers the means alone: spreads, stretched over their range, would look like differences
  kept <- share | unlist(to_r(family$tells()$tolist()))
  means <- wide(x$profiles)[kept, , drop = FALSE]
  ranges <- rep("", nrow(means))
  for (row in which(!share[kept])) {
    ends <- range(means[row, ])
    means[row, ] <- (means[row, ] - ends[1]) / max(diff(ends), 1e-12)
    ranges[row] <- sprintf(" (%.3g to %.3g)", ends[1], ends[2])
  }
  rows <- nrow(means)
  lines <- paste0(shorten(rownames(means), room(1, 2) - nchar(ranges)), ranges)
  names <- shorten(colnames(means), room(2, 7))
  colours <- rev(grDevices::hcl.colors(64, "Blues"))
  old <- graphics::par(mar = c(7 + below(names), 2 + max(nchar(lines, "width")) / 2, 2, 1))
  on.exit(graphics::par(old))
  graphics::image(seq_len(ncol(means)), seq_len(rows), t(means[rows:1, , drop = FALSE]),
                  zlim = c(0, 1), col = colours, axes = FALSE, xlab = "", ylab = "", ...)
  graphics::legend(ncol(means) + .5, graphics::grconvertY(0, "nfc"), xjust = 1, yjust = 0,
                   legend = c("0, or lowest", "1/2", "1, or highest"), fill = colours[c(1, 32, 64)],
                   horiz = TRUE, xpd = NA, bty = "n", title = "probability, or number in its range")
  cluster_axis(names)
  graphics::axis(2, seq_len(rows), rev(lines), las = 1, tick = FALSE)
  invisible(x)
}

# characters, of half a line each, beside `taken` lines in half the figure: 1, its width; 2, its height
room <- function(side, taken) 2 * (graphics::par("fin")[side] / graphics::par("csi") / 2 - taken)

# leaves the ends of each name, which has the level; `most` may differ from name to name
shorten <- function(names, most) {
  end <- pmax(rep_len(floor(most), length(names)) - 3, 4) %/% 2
  length <- nchar(names)
  cut <- paste0(strtrim(names, end), "...", substr(names, length - end + 1, length))
  ifelse(nchar(names, "width") > 2 * end + 4, cut, names)
}

# lines that names need below an axis beside the usual one; names that are more than numbers stand
below <- function(names) if (max(nchar(names, "width")) > 3) max(nchar(names, "width")) / 2 else 0

cluster_axis <- function(names) {
  # axis() alone would leave out names that touch
  graphics::axis(1, seq_along(names), names, las = if (below(names) > 0) 2 else 1)
  graphics::title(xlab = "cluster", line = 3 + below(names))
}

#' Find the cluster of each row
#' @param object What `silomix_fit()` returned.
#' @param newdata A data frame with the same columns.
#' @param type "class": the most probable cluster, a factor; "prob": a matrix, a column per cluster.
#' @param ... Not used.
#' @export
predict.silomix_fit <- function(object, newdata, type = c("class", "prob"), ...) {
  table <- silomix_table(newdata)
  flat <- posterior_of(object)$membership(table, silo = object$silo)$ravel()$tolist()
  names <- levels(object$clusters$cluster)
  probability <- matrix(unlist(to_r(flat)), ncol = length(names), byrow = TRUE)
  colnames(probability) <- names
  if (match.arg(type) == "prob") return(probability)
  to_factor(max.col(probability, "first") - 1, names)
}

#' Draws for the package posterior, by chain
#'
#' Shares are called `weights[cluster]`, parameters of the profiles `profiles[cluster,variable=level]`.
#' @param x What `silomix_fit()` returned.
#' @param ... Not used.
#' @exportS3Method posterior::as_draws
as_draws.silomix_fit <- function(x, ...) {
  np <- python("numpy")
  places <- python("silomix.posterior.global_posterior")$find_chains(posterior_of(x))
  size <- unlist(to_r(places$shape))
  clusters <- levels(x$clusters$cluster)
  named <- unique(x$profiles[c("variable", "level_name")])
  named <- paste(named$variable, named$level_name, sep = "=")
  by_chain <- function(draws) {
    flat <- draws$reshape(size[1] * size[2], -1L)$take(places, 0L)
    # R's first axis runs fastest, Python's last
    flat <- np$transpose(flat, reticulate::tuple(2L, 0L, 1L))$ravel()$tolist()
    array(unlist(to_r(flat)), c(size[2], size[1], length(flat) / prod(size)))
  }
  parts <- list(by_chain(x$posterior$weights), by_chain(x$posterior$parameters))
  variables <- c(
    paste0("weights[", clusters, "]"),
    paste0("profiles[", rep(clusters, each = length(named)), ",", named, "]")
  )
  both <- array(unlist(parts), c(size[2], size[1], length(variables)))
  dimnames(both) <- list(NULL, NULL, variables)
  posterior::as_draws_array(both)
}
